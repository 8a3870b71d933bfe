"""Exclusive locks on files (flock). The kernel releases a lock when its process ends, however that ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_POLL_S = 0.05


def locked(path: Path, timeout_s: float = 0.0) -> int:
    """Lock a file, which is made with mode 0600 if it is missing.

    The file is never removed: a waiting process would otherwise lock a file that others cannot open any more.

    Args:
        timeout_s: how long to wait for another process to release the lock.

    Returns:
        A descriptor. The lock is held until it is closed.

    Raises:
        BlockingIOError: another process holds the lock.
        OSError: the file cannot be opened, or cannot be locked: ENOLCK, or a file system without locks.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_S)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, error.strerror, str(path)) from None  # of the same class, and with the name
