"""Connections to a node's agent: the runner's (Monitor) and a worker's (AgentClient).

Standard library only: importing this imports neither torch nor MPI.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, TypeVar

from ckpt.agent.rpc.credentials import peer_of
from ckpt.agent.rpc.framing import Decoder, encode
from ckpt.agent.rpc.messages import OF_WORKER, TO_WORKER, check_answer, received
from ckpt.errors import AgentError
from ckpt.fork import let_go_when_forked
from ckpt.timeouts import WorkerDeadlines

_CONNECT_POLL_S = 0.02  # between attempts to connect to a socket that the agent has not made yet
_READ_BYTES = 1 << 18

C = TypeVar("C", bound="_Connection")


log = logging.getLogger("ckpt")


class _Connection:
    """A blocking connection to an agent. Every wait has a deadline. Any thread may send; one thread at a time receives.

    `send` and `receive` raise AgentError if the agent is gone.
    """

    def __init__(self, path: Path, stream: socket.socket) -> None:
        self._path = path
        self._socket = stream
        self._sending = threading.Lock()
        self._poll = select.poll()  # not select(): a training process may have more than 1024 files open
        self._poll.register(stream, select.POLLIN)
        self._decoder = Decoder()
        self._received: deque[dict[str, Any]] = deque()
        let_go_when_forked(self)

    @classmethod
    def _open(cls: type[C], path: Path, timeout_s: float, **hello: Any) -> C:
        """Connects as soon as the agent listens, and sends the hello. Raises AgentError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                stream.settimeout(max(0.001, deadline - time.monotonic()))
                stream.connect(os.fspath(path))
            except OSError as error:
                stream.close()
                if isinstance(error, PermissionError) or time.monotonic() + _CONNECT_POLL_S > deadline:
                    within = f" within {timeout_s:g} s" if timeout_s else ""  # 0: the caller tries again
                    raise AgentError(
                        f"agent {path}: no connection{within} ({error.strerror or error}); "
                        "read the agent's messages in the attempt's agents.log"
                    ) from None
                time.sleep(_CONNECT_POLL_S)
                continue
            stream.settimeout(WorkerDeadlines.send_s)
            connection = cls(path, stream)
            connection.send("hello", **hello)
            return connection

    def send(self, op: str, **fields: Any) -> None:
        """Sends a message that has no reply."""
        try:
            data = encode({"op": op, **fields})
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise AgentError(f"agent {self._path}: cannot send {op!r}: {error}") from None

    def fileno(self) -> int:
        """For select and event loops. When it is readable, call `receive(0)` until the result is None."""
        return self._socket.fileno()

    def receive(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message, or None if none arrives within `timeout_s` (0: only messages that have arrived)."""
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

    def close(self) -> None:
        self._socket.close()

    let_go = close


class Monitor(_Connection):
    """The runner's connection to its node's agent: receives events, and requests a stop or a shutdown."""

    @classmethod
    def connect(cls, ram_dir: str | os.PathLike[str], attempt: int, timeout_s: float) -> Monitor:
        """Connects to the attempt's agent on this node as soon as it listens.

        Raises:
            AgentError: no connection within `timeout_s`, or the agent refuses this user.
        """
        return cls._open(Path(ram_dir) / f"agent-{attempt}.sock", timeout_s, role="monitor")

    @property
    def agent_pid(self) -> int:
        """The pid of the agent according to the kernel (SO_PEERCRED); 0 in another pid namespace."""
        return peer_of(self._socket)[0]

    def ping(self) -> None:
        """Requests the event `pong`, which shows that the agent responds."""
        self.send("ping")

    def stop(self, lower_s: float | None = None) -> None:
        """Requests that all ranks of all nodes stop at one step boundary. The event `stop_agreed` reports it.

        Args:
            lower_s: for how long workers that close wait for the lower tiers, from now on; None: until their deadline.
                The newest request counts.
        """
        self.send("stop", **({} if lower_s is None else {"lower_s": lower_s}))

    def shutdown(self, timeout_s: float = 2.0, *, workers_s: float = 0.0) -> None:
        """Ends this node's agent. Returns when it serves nobody any more. Events that arrive meanwhile are lost.

        The wait is necessary: an agent may not read the request if the connection closes right after it.

        Args:
            workers_s: limit, before that, for connected workers to leave.

        Raises:
            AgentError: the agent is still running after both.
        """
        self.send("shutdown", workers_s=workers_s)
        deadline = time.monotonic() + workers_s + timeout_s
        try:
            while self.receive(max(0.0, deadline - time.monotonic())) is not None:
                pass
        except AgentError:
            return
        raise AgentError(f"the node's agent still runs {timeout_s:g} s after the shutdown request; kill it")

    def release(self) -> None:
        """Training has ended: the agent writes the newest step to all lower tiers, and exits. Does not wait."""
        self.send("shutdown", finish=True)

    def finish(self, timeout_s: float, *, workers_s: float = 0.0) -> None:
        """As `release`, and returns when the agent serves nobody any more. Logs what is written, and what fails then.

        Args:
            workers_s: limit, before that, for connected workers to leave.

        Raises:
            AgentError: the agent is still running after both.
        """
        self.send("shutdown", workers_s=workers_s, finish=True)
        deadline, is_writing = time.monotonic() + workers_s + timeout_s, False
        try:
            while (event := self.receive(max(0.0, deadline - time.monotonic()))) is not None:
                if event.get("event") == "finishing":
                    is_writing = True
                    log.info("writing step %s to %s before the end", event["step"], ", ".join(event["tiers"]))
                elif is_writing and event.get("event") == "problem":  # earlier ones were logged when they came
                    log.warning("%s: %s", event["what"], event["detail"])
        except AgentError:
            return
        raise AgentError(f"the node's agent has not written the newest step within {timeout_s:g} s")

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AgentClient(_Connection):
    """A worker's connection to its node's agent: requests with replies, and events. Thread-safe."""

    def __init__(self, path: Path, stream: socket.socket) -> None:
        super().__init__(path, stream)
        self._idle = select.poll()  # of `wait`: only one thread at a time may use a poll object
        self._idle.register(stream, select.POLLIN)
        self._ids = itertools.count(1)
        self._events: deque[dict[str, Any]] = deque()
        self._lock = threading.Lock()  # one reader at a time

    @classmethod
    def connect(cls, socket_path: Path, *, rank: int, local_rank: int, timeout_s: float) -> AgentClient:
        """Connects and identifies this worker.

        Raises:
            AgentError: the agent does not listen within `timeout_s`, or refuses this user.
        """
        return cls._open(socket_path, timeout_s, role="worker", local_rank=local_rank, rank=rank, pid=os.getpid())

    def request(self, op: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """Sends a request and waits for its reply, with objects of the catalogue's types.

        Events that arrive meanwhile are kept for `events`.

        Raises:
            AgentError: no reply within `timeout_s`, the reply is an error, or the agent is gone.
        """
        number = next(self._ids)
        with self._lock:
            self.send(op, id=number, **fields)
            deadline = time.monotonic() + timeout_s
            while (message := self.receive(max(0.0, deadline - time.monotonic()))) is not None:
                if "event" in message:
                    self._events.append(received(message, TO_WORKER))
                elif message.get("re") == number:
                    if "error" in message:
                        raise AgentError(f"agent {self._path}: {op}: {message['error']}")
                    del message["re"]
                    return check_answer(op, message, OF_WORKER)
        raise AgentError(f"agent {self._path}: no reply to {op!r} within {timeout_s:g} s")

    def events(self, timeout_s: float = 0.0) -> list[dict[str, Any]]:
        """The events since the last call. If there are none, waits up to `timeout_s` for one."""
        with self._lock:
            while (message := self.receive(0.0 if self._events else timeout_s)) is not None:
                if "event" in message:
                    self._events.append(received(message, TO_WORKER))
            events = list(self._events)
            self._events.clear()
            return events

    def wait(self, timeout_s: float) -> None:
        """Returns when a message has arrived, the agent is gone, or after `timeout_s`. Reads nothing."""
        self._idle.poll(timeout_s * 1000)
