"""Accepts connections a few at a time: who floods the port must not keep the loop from those that are connected.

asyncio's own server accepts the whole backlog in one turn of the loop, and each connection costs memory, a descriptor
and a handshake before it is known whose it is.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

ACCEPTS_A_TURN = 4
_PAUSE_S = 0.01
_NO_DESCRIPTOR_S = 0.2

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """A listening socket. Made by `listen`.

    Attributes:
        port: where it listens.
    """

    def __init__(self, sock: socket.socket, handle: Handle, is_full: Callable[[int], bool], limit: int) -> None:
        self._sock = sock
        self._handle = handle
        self._is_full = is_full
        self._limit = limit
        self._starting = 0  # connections that are yet to be handed over
        self._connections: set[asyncio.Task[None]] = set()
        self.port: int = sock.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Accepts no more; connections that are there stay."""
        self._accepting.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                for _ in range(ACCEPTS_A_TURN):
                    while self._is_full(self._starting):
                        await asyncio.sleep(_PAUSE_S)
                    try:
                        connection, _ = await loop.sock_accept(self._sock)
                    except OSError as error:  # no descriptor is left, or the peer has gone
                        log.warning("connection not accepted: %s", error)
                        await asyncio.sleep(_NO_DESCRIPTOR_S)
                        continue
                    self._starting += 1
                    task = asyncio.create_task(self._serve(connection))
                    self._connections.add(task)
                    task.add_done_callback(self._connections.discard)
                await asyncio.sleep(0)  # sock_accept() does not end the turn where somebody waits already
        finally:
            self._sock.close()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=self._limit)
        except OSError:  # it has gone already
            connection.close()
            return
        finally:
            self._starting -= 1
        await self._handle(reader, writer)


def listen(
    host: str, port: int, handle: Handle, *, backlog: int, is_full: Callable[[int], bool], limit: int
) -> Listener:
    """Listens for connections.

    Args:
        host, port: where; port 0 lets the system choose.
        handle: called with each connection.
        backlog: connections that the kernel keeps for us.
        is_full: whether to accept none for now; called with the number of connections yet to be handed over.
        limit: of each reader's buffer, in bytes.
    """
    sock = socket.create_server((host, port), backlog=backlog)
    sock.setblocking(False)
    return Listener(sock, handle, is_full, limit)
