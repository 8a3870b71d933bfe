"""Writes a large file without the page cache (O_DIRECT), if the storage supports that.

A checkpoint is not read back soon. In the page cache it would evict the data that training reads. Each page would also
be copied once more, and to allocate the pages takes several times as long as the disk.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PAGE_BYTES = 4096  # O_DIRECT needs addresses, offsets and lengths that are multiples of this, on any disk
_WRITE_BYTES = 16 << 20  # large enough for any disk, small enough for a steady rate limit


class DirectFile:
    """A new file of mode 0600. Whole pages are written directly from memory, the rest through the page cache."""

    def __init__(self, path: Path, take: Callable[[int], None]) -> None:
        """Make the file, or truncate an existing one. `take` gets the number of bytes before each write."""
        self._take = take
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._rest: list[tuple[int, memoryview]] = []
        self._direct = False
        with suppress(OSError):  # the file system has no O_DIRECT
            self._switch(direct=True)

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes. They must stay unchanged until `finish`, which writes some of them."""
        whole = len(data) // PAGE_BYTES * PAGE_BYTES if self._direct and _aligned(offset, data) else 0
        self._put(offset, data[:whole])
        if whole < len(data):
            self._rest.append((offset + whole, data[whole:]))

    def finish(self) -> None:
        """Write the remaining bytes and wait until all are on the storage."""
        if self._direct:
            self._switch(direct=False)
        for offset, data in self._rest:
            self._put(offset, data)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file, finished or not."""
        os.close(self._descriptor)

    def _put(self, offset: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            piece = data[done : done + _WRITE_BYTES]
            self._take(len(piece))
            done += self._put_piece(offset + done, piece)

    def _put_piece(self, offset: int, piece: memoryview) -> int:
        try:
            return os.pwrite(self._descriptor, piece, offset)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._direct:
                raise
        self._switch(direct=False)  # the storage needs larger pages, or cannot read from this kind of memory
        return os.pwrite(self._descriptor, piece, offset)

    def _switch(self, *, direct: bool) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if direct else flags & ~os.O_DIRECT)
        self._direct = direct


def _aligned(offset: int, data: memoryview) -> bool:
    if len(data) < PAGE_BYTES or data.readonly:  # ctypes gives no address of read-only memory
        return False
    return offset % PAGE_BYTES == 0 and ctypes.addressof(ctypes.c_char.from_buffer(data)) % PAGE_BYTES == 0
