"""One live run at a time in a folder on a node's own disk: a lock that the kernel lets go with the process."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from ckpt.errors import NamespaceError

LOCK = "owner.lock"  # never removed: whoever waits for it would then hold a file that nobody else sees
_WORD_BYTES = 500


class DiskInUse(NamespaceError):
    """Another run that lives writes there."""


class Occupancy:
    """Held from its making until `release`, or the end of the process, however it ends."""

    def __init__(self, folder: Path, holder: str) -> None:
        """
        Args:
            folder: on a disk of this machine.
            holder: who we are, for whoever is refused.

        Raises:
            DiskInUse: another process has it; says who.
            OSError: the disk cannot be written, or knows no locks.
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
        """Whoever comes next may have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
