"""Accepts a few connections in each turn of the event loop, so that a flood of connections does not block the loop.

asyncio's own server accepts the whole backlog in one turn. Each connection costs memory, a descriptor and a handshake
before the peer is known.
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
        port: the port on which it listens.
    """

    def __init__(self, sock: socket.socket, handle: Handle, is_full: Callable[[int], bool], limit: int) -> None:
        self._sock = sock
        self._handle = handle
        self._is_full = is_full
        self._limit = limit
        self._starting = 0  # number of accepted connections for which `handle` was not called yet
        self._connections: set[asyncio.Task[None]] = set()
        self.port: int = sock.getsockname()[1]
        self._accepting = asyncio.create_task(self._accept())

    def close(self) -> None:
        """Stop accepting connections. Existing ones stay."""
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
                    except OSError as error:  # no descriptor is free, or the peer has closed the connection
                        log.warning("connection not accepted: %s", error)
                        await asyncio.sleep(_NO_DESCRIPTOR_S)
                        continue
                    self._starting += 1
                    task = asyncio.create_task(self._serve(connection))
                    self._connections.add(task)
                    task.add_done_callback(self._connections.discard)
                await asyncio.sleep(0)  # sock_accept() returns without yielding if a connection waits already
        finally:
            self._sock.close()

    async def _serve(self, connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=self._limit)
        except OSError:  # the peer has closed the connection
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
        host, port: the address; with port 0 the system chooses the port.
        handle: called with each connection.
        backlog: number of connections that the kernel queues.
        is_full: whether to accept none for now. Called with the number of connections not yet passed to `handle`.
        limit: size of each reader's buffer, in bytes.
    """
    sock = socket.create_server((host, port), backlog=backlog)
    sock.setblocking(False)
    return Listener(sock, handle, is_full, limit)
