"""A lock for a folder on a node's own disk, for one run at a time. The kernel releases it when the process ends."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from ckpt.errors import NamespaceError

LOCK = "owner.lock"  # never removed: a waiting process would otherwise lock a file that others cannot open any more
_WORD_BYTES = 500


class DiskInUse(NamespaceError):
    """A live run uses the folder."""


class Occupancy:
    """The lock, held from the construction until `release` or the end of the process."""

    def __init__(self, folder: Path, holder: str) -> None:
        """
        Args:
            folder: a folder on a disk of this machine.
            holder: name of this run, for the errors of other runs.

        Raises:
            DiskInUse: another process has the lock. The message names it.
            OSError: the disk cannot be written, or does not support locks.
        """
        path = folder / LOCK
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.truncate(self._descriptor, 0)
            os.pwrite(self._descriptor, holder.encode()[:_WORD_BYTES], 0)
        except OSError as error:
            found = os.pread(self._descriptor, _WORD_BYTES, 0).decode(errors="replace")
            self.release()
            if error.errno == errno.EWOULDBLOCK:
                raise DiskInUse(
                    f"{folder}: in use by {found or 'another run'}; wait for it to end, cancel it, or choose another "
                    "namespace"
                ) from None
            raise

    def release(self) -> None:
        """Release the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
