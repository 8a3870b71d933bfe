"""One agent for each memory directory, and a deadline for every wait."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from ckpt.agent.process.launch import PID_FILE
from ckpt.errors import AgentError
from ckpt.format.atomic_files import private_directory
from ckpt.format.file_lock import locked

_SIGTERM_POLL_S = 1.0
_NICE = 10

log = logging.getLogger(__name__)

_LOCK = "agent.lock"


class MemoryDirectory:
    """A node's memory directory. This process is its only agent until it ends."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        """Makes the directory if it is missing, and locks it. Waits for an older attempt's agent to exit.

        Raises:
            AgentError: another agent has not released the directory in time.
            ConfigError, OSError: from private_directory() and locked().
        """
        self._path = path
        self._lock = _lock(path, timeout_s)

    @property
    def is_there(self) -> bool:
        """Whether the directory is still the locked one.

        It may have been removed, for example by systemd's RemoveIPC=yes.
        """
        try:
            return os.path.samestat(os.lstat(self._path / _LOCK), os.fstat(self._lock))
        except OSError:
            return False

    def make_again(self) -> None:
        """Makes and locks the directory again after it was removed. Raises as the constructor does."""
        lock = _lock(self._path, 0.0)
        self.close()
        self._lock = lock

    def close(self) -> None:
        """Releases the directory for another agent."""
        os.close(self._lock)


def _lock(path: Path, timeout_s: float) -> int:
    private_directory(path)
    try:
        descriptor = locked(path / _LOCK, timeout_s)
    except BlockingIOError:
        raise AgentError(f"memory directory {path}: in use by another agent; end that one first") from None
    register(path)
    return descriptor


def register(path: Path) -> None:
    """Writes the file by which the node's runner finds this agent."""
    (path / PID_FILE.format(pid=os.getpid())).touch(0o600)


def yield_to_training() -> None:
    """Gives all threads of this process, current and future, a lower CPU priority than the workers."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread), _NICE)


@contextlib.contextmanager
def leave_within(timeout_s: float, waited_for: str, exit_code: int) -> Iterator[None]:
    """Ends the process if the block takes too long, because MPI's collective calls have no deadline."""

    def leave() -> None:
        log.warning("waited %g s for %s: leaving", timeout_s, waited_for)
        os._exit(exit_code)

    timer = threading.Timer(timeout_s, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class TerminatedLate:
    """During an agent's start, a SIGTERM ends the process only `grace_s` later.

    A preemption sends SIGTERM to every process of the job, but agents that are starting must still save the step at
    which the ranks stop. srun also sends SIGTERM if one of the agents has died, because the others would wait for it.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._is_over = threading.Event()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # the thread handles it
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # an ignored signal would not become pending
        threading.Thread(target=self._wait, name="sigterm", daemon=True).start()

    def ignore(self) -> None:
        """From now on SIGTERM is ignored, also a pending one."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._is_over.set()

    def _wait(self) -> None:
        while not self._is_over.is_set():
            if signal.sigtimedwait({signal.SIGTERM}, _SIGTERM_POLL_S) is None:
                continue
            log.warning("SIGTERM: the agents have %g s left to come together", self._grace_s)
            if not self._is_over.wait(self._grace_s):
                log.warning("the agents have not come together within %g s of a SIGTERM: leaving", self._grace_s)
                os._exit(1)
