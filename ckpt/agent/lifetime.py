"""One agent for each memory directory, and no wait without an end."""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import threading
import time
from pathlib import Path

from ckpt.errors import AgentError

_LOCK_POLL_S = 0.05

log = logging.getLogger(__name__)

_LOCK = "agent.lock"  # never removed: whoever waits for it would then hold a file that nobody else sees


def lock_memory(ram_dir: Path, timeout_s: float) -> int:
    """Makes this process a memory directory's only agent until it ends; an older attempt's may take a moment to die.

    Returns:
        The lock's descriptor, to be kept open.

    Raises:
        AgentError: the directory is not ours alone, or another agent does not leave it in time.
    """
    try:
        status = os.lstat(ram_dir)
    except OSError as error:
        raise AgentError(f"memory directory {ram_dir}: {error.strerror}; the launcher's runner makes it") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise AgentError(
            f"memory directory {ram_dir}: mode {status.st_mode & 0o777:o} of uid {status.st_uid}, "
            f"expected a directory of mode 700 of uid {os.getuid()}; remove it"
        )
    descriptor = os.open(ram_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise AgentError(f"memory directory {ram_dir}: in use by another agent; end that one first") from None
            time.sleep(_LOCK_POLL_S)


class leave_within:
    """Ends the process when the block takes too long: MPI's collective calls know no deadline."""

    def __init__(self, timeout_s: float, waited_for: str, exit_code: int) -> None:
        self._timer = threading.Timer(timeout_s, self._leave, (timeout_s, waited_for, exit_code))
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    @staticmethod
    def _leave(timeout_s: float, waited_for: str, exit_code: int) -> None:
        log.warning("waited %g s for %s: leaving", timeout_s, waited_for)
        os._exit(exit_code)
