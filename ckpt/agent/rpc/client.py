"""The two that talk to a node's agent: the node's runner (Monitor) and a worker (AgentClient).

Standard library only: importing this imports neither torch nor MPI.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import threading
import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

from ckpt.agent.rpc.credentials import peer_of
from ckpt.agent.rpc.framing import Decoder, encode
from ckpt.errors import AgentError
from ckpt.fork import let_go_when_forked
from ckpt.timeouts import WorkerDeadlines

_CONNECT_POLL_S = 0.02  # between looks for a socket that the agent has yet to make
_READ_BYTES = 1 << 18


class _Connection:
    """A blocking stream of messages, each wait with a deadline. Any thread may send; one receives."""

    def __init__(self, path: Path, stream: socket.socket) -> None:
        self._path = path
        self._socket = stream
        self._sending = threading.Lock()
        self._poll = select.poll()  # not select(): a training process may have more than 1024 files open
        self._poll.register(stream, select.POLLIN)
        self._idle = select.poll()  # of `wait`: a poll object is for one thread
        self._idle.register(stream, select.POLLIN)
        self._decoder = Decoder()
        self._received: deque[dict[str, Any]] = deque()
        let_go_when_forked(self)

    @classmethod
    def open(cls, path: Path, timeout_s: float) -> _Connection:
        """Connects as soon as the agent listens; raises AgentError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                stream.settimeout(max(0.001, deadline - time.monotonic()))
                stream.connect(os.fspath(path))
            except OSError as error:
                stream.close()
                if isinstance(error, PermissionError) or time.monotonic() + _CONNECT_POLL_S > deadline:
                    raise AgentError(
                        f"agent {path}: no connection within {timeout_s:g} s ({error.strerror or error}); "
                        "look for the agent's own messages in the attempt's agents.log"
                    ) from None
                time.sleep(_CONNECT_POLL_S)
                continue
            stream.settimeout(WorkerDeadlines.send_s)
            return cls(path, stream)

    def fileno(self) -> int:
        return self._socket.fileno()

    def peer_pid(self) -> int:
        return peer_of(self._socket)[0]

    def send(self, message: dict[str, Any]) -> None:
        try:
            data = encode(message)
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise AgentError(f"agent {self._path}: cannot send {message.get('op')!r}: {error}") from None

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or None when none comes within `timeout_s` (0: only what is already there)."""
        deadline = time.monotonic() + timeout_s
        while not self._received:
            remaining_s = max(0.0, deadline - time.monotonic())
            try:
                if not self._poll.poll(remaining_s * 1000):
                    return None
                data = self._socket.recv(_READ_BYTES)
            except (OSError, ValueError) as error:
                raise AgentError(f"agent {self._path}: connection lost: {error}") from None
            if not data:
                raise AgentError(f"agent {self._path}: closed the connection; it has ended or been killed")
            self._received.extend(self._decoder.feed(data))
        return self._received.popleft()

    def wait(self, timeout_s: float) -> None:
        """Returns when something has arrived, the other end is gone, or after `timeout_s`; takes nothing."""
        self._idle.poll(timeout_s * 1000)

    def close(self) -> None:
        self._socket.close()

    let_go = close


class Monitor:
    """The node's runner's view of the node's agent: events as they happen, and the requests to stop and to shut down.

    A receive that raises AgentError means that the agent is gone.
    """

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    @classmethod
    def connect(cls, ram_dir: str | os.PathLike[str], attempt: int, timeout_s: float) -> Monitor:
        """Connects to the attempt's agent on this node, waiting for it to listen.

        Raises:
            AgentError: it did not within `timeout_s`, or refuses this user.
        """
        connection = _Connection.open(Path(ram_dir) / f"agent-{attempt}.sock", timeout_s)
        connection.send({"op": "hello", "role": "monitor"})
        return cls(connection)

    def fileno(self) -> int:
        """For select and event loops; when readable, call `receive(0)` until it gives None."""
        return self._connection.fileno()

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next event ({"event": name, ...}), None when none comes in time; AgentError when the agent is gone."""
        return self._connection.receive(timeout_s)

    @property
    def agent_pid(self) -> int:
        """The agent's process, as the kernel tells it (SO_PEERCRED); 0 in another pid namespace."""
        return self._connection.peer_pid()

    def ping(self) -> None:
        """Asks the agent for a sign of life; answered by the event `pong`."""
        self._connection.send({"op": "ping"})

    def stop(self) -> None:
        """Asks all ranks of all nodes to stop at one common step boundary; answered by the event `stop_agreed`."""
        self._connection.send({"op": "stop"})

    def shutdown(self, timeout_s: float = 2.0, *, workers_s: float = 0.0) -> None:
        """Ends this node's agent, and waits until it serves nobody any more; events that come meanwhile are given up.

        Waiting is part of the request: the agent may not read what comes before a connection that is closed already.

        Args:
            timeout_s: for the agent to end.
            workers_s: before that, for the workers that are connected to leave.

        Raises:
            AgentError: it is still there after both; kill it.
        """
        self._connection.send({"op": "shutdown", "workers_s": workers_s})
        deadline = time.monotonic() + workers_s + timeout_s
        try:
            while self._connection.receive(max(0.0, deadline - time.monotonic())) is not None:
                pass
        except AgentError:
            return
        raise AgentError(f"the node's agent is still there {timeout_s:g} s after it was told to shut down; kill it")

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AgentClient:
    """A worker's connection to its node's agent: requests with replies, and events that arrive unasked. Thread-safe."""

    def __init__(self, connection: _Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._ids = itertools.count(1)
        self._events: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()  # one reader at a time

    @classmethod
    def connect(cls, socket_path: Path, *, rank: int, local_rank: int, timeout_s: float) -> AgentClient:
        """Connects and says which worker this is.

        Raises:
            AgentError: the agent does not listen within `timeout_s`, or refuses this user.
        """
        connection = _Connection.open(socket_path, timeout_s)
        hello = {"op": "hello", "role": "worker", "local_rank": local_rank}
        connection.send({**hello, "rank": rank, "pid": os.getpid()})
        return cls(connection, socket_path)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, op: str, **fields: Any) -> None:
        """Sends a message that has no reply."""
        self._connection.send({"op": op, **fields})

    def request(self, op: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """Sends a request and waits for its reply; events that come meanwhile are kept for `events`.

        Raises:
            AgentError: no reply within `timeout_s`, the agent refused (its reply has `error`), or it is gone.
        """
        number = next(self._ids)
        with self._lock:
            self._connection.send({"op": op, "id": number, **fields})
            deadline = time.monotonic() + timeout_s
            while (message := self._connection.receive(max(0.0, deadline - time.monotonic()))) is not None:
                if "event" in message:
                    self._events.append(message)
                elif message.get("re") == number:
                    if "error" in message:
                        raise AgentError(f"agent {self._path}: {op}: {message['error']}")
                    return message
        raise AgentError(f"agent {self._path}: no reply to {op!r} within {timeout_s:g} s")

    def events(self, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """The events that have arrived since the last call; waits up to `timeout_s` for a first one."""
        with self._lock:
            while (message := self._connection.receive(0.0 if self._events else timeout_s)) is not None:
                if "event" in message:
                    self._events.append(message)
            events = list(self._events)
            self._events.clear()
            return events

    def wait(self, timeout_s: float) -> None:
        """Returns when something has arrived, or the agent is gone, or after `timeout_s`; takes nothing."""
        self._connection.wait(timeout_s)

    def close(self) -> None:
        self._connection.close()
