"""The agent's Unix socket: accepts clients, and sends events to workers and the runner."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckpt.agent.rpc.credentials import peer_of
from ckpt.agent.rpc.framing import Decoder, encode
from ckpt.agent.rpc.messages import TO_RUNNER, TO_WORKER, event
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError, CheckpointError
from holdfast.base.messages import plain

_READ_BYTES = 1 << 18
_MAX_UNREAD_BYTES = 256 << 20  # a client with this many unread bytes has stopped reading
_MAX_PATH_BYTES = 107  # struct sockaddr_un
_BACKLOG = 256  # events kept until a monitor connects

log = logging.getLogger(__name__)


class Client:
    """One connection. `role` is "" until its hello."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.role = ""
        self.local_rank = -1
        self._writer = writer

    def send(self, message: dict[str, Any]) -> None:
        """Queues a message. A client that is gone or has stopped reading is disconnected."""
        if self._writer.is_closing():
            return
        self._writer.write(encode(message))
        if self._writer.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            log.warning("local rank %d (%s) reads nothing; its connection is closed", self.local_rank, self.role)
            self._writer.transport.abort()


Serve = Callable[[Client, dict[str, Any]], Awaitable[dict[str, Any] | None]]


class WorkerSocket:
    """Accepts connections of this user only, replies to requests and distributes events."""

    def __init__(self, path: Path, serve: Serve) -> None:
        """
        Args:
            serve: handles one message of a client after its hello. Its result is the reply to a message with an "id". A
                CheckpointError or OSError becomes a reply with "error".
        """
        self.path = path
        self.clients: set[Client] = set()
        self.used = False  # whether a client has sent hello yet
        self._serve = serve
        self._server: asyncio.Server | None = None
        self._backlog: deque[dict[str, Any]] = deque(maxlen=_BACKLOG)
        self._tasks = Tasks()

    async def listen(self) -> None:
        """Listens, or listens again after the socket's file was removed. Connections stay open.

        Raises:
            AgentError: the path is too long for a socket.
            OSError: the directory is missing or full.
        """
        if (length := len(os.fsencode(self.path))) > _MAX_PATH_BYTES:
            raise AgentError(
                f"socket {self.path}: got {length} bytes, at most {_MAX_PATH_BYTES}; use a shorter memory directory"
            )
        if self._server is not None:
            self._server.close()
        self._server = await asyncio.start_unix_server(self._accept, path=self.path)
        os.chmod(self.path, 0o600)

    @property
    def is_there(self) -> bool:
        """Whether the socket's file is still this one."""
        return self.path.exists()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._tasks.cancel()
        self.path.unlink(missing_ok=True)

    def to_workers(self, name: str, **fields: Any) -> None:
        """Sends an event to all workers of the node. Raises MalformedMessage if it is not as in the catalogue."""
        message = event(name, fields, TO_WORKER)
        for client in [client for client in self.clients if client.role == "worker"]:
            client.send(message)

    def to_monitors(self, name: str, **fields: Any) -> None:
        """Sends an event to the node's runner. It is kept until a runner connects. Raises as `to_workers`."""
        message = event(name, fields, TO_RUNNER)
        monitors = [client for client in self.clients if client.role == "monitor"]
        if not monitors:
            self._backlog.append(message)
        for client in monitors:
            client.send(message)

    def problem(self, what: str, detail: str, step: int | None = None, *, failed: str | None = None) -> None:
        """Logs and reports a failure that does not stop training.

        Args:
            failed: the tier ("memory" included) that the save will not reach; None: no save failed.
        """
        log.warning("%s%s: %s", what, "" if step is None else f", step {step}", detail)
        optional = {key: value for key, value in (("step", step), ("failed", failed)) if value is not None}
        self.to_monitors("problem", what=what, detail=detail, **optional)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Starts the task itself, because asyncio's own task logs an error on cancellation in Python 3.12.1."""
        self._tasks.start(self._converse(reader, writer))

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(writer)
        try:
            if (uid := peer_of(writer.get_extra_info("socket"))[1]) != os.getuid():
                log.warning("connection of uid %d refused: this agent serves uid %d", uid, os.getuid())
                return
            self.clients.add(client)
            decoder = Decoder()
            while data := await reader.read(_READ_BYTES):
                for message in decoder.feed(data):
                    await self._dispatch(client, message)
        except (AgentError, OSError) as error:
            log.warning("connection of local rank %d (%s) closed: %s", client.local_rank, client.role, error)
        finally:
            self.clients.discard(client)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _dispatch(self, client: Client, message: dict[str, Any]) -> None:
        """Handles a message without an id before the next one is read. Requests are answered when they are ready."""
        if message.get("op") == "hello":
            self._hello(client, message)
        elif not client.role:
            raise AgentError(f"got {message.get('op')!r:.40}, expected hello first")
        elif "id" in message:
            self._tasks.start(self._answer(client, message))
        else:
            await self._answer(client, message)

    def _hello(self, client: Client, message: dict[str, Any]) -> None:
        role, local_rank = message.get("role"), message.get("local_rank", -1)
        if role not in ("worker", "monitor") or type(local_rank) is not int:
            raise AgentError(f"hello of role {role!r:.40}, expected worker or monitor")
        client.role, client.local_rank = role, local_rank
        self.used = True
        while role == "monitor" and self._backlog:
            client.send(self._backlog.popleft())

    async def _answer(self, client: Client, message: dict[str, Any]) -> None:
        try:
            answer = await self._serve(client, message) or {}
        except (CheckpointError, OSError) as error:
            answer = {"error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            log.exception("malformed %r of local rank %d", message.get("op"), client.local_rank)
            answer = {"error": f"malformed {message.get('op')!r:.40}: {type(error).__name__} {error}"}
        if "id" in message:
            client.send({"re": message["id"], **plain(answer)})
        elif "error" in answer:
            self.problem(f"message {message.get('op')!r:.40} of local rank {client.local_rank}", answer["error"])
