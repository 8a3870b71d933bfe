"""Memory for a shard that is being received, allocated a little ahead of the bytes.

Allocating memory takes about as long as receiving the bytes, so both run at the same time.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from threading import Thread

from ckpt.native.pages import populate_for_writing

SLICE_BYTES = 8 << 20  # a multiple of every page size; takes some milliseconds


class Room:
    """A file in a memory directory during its filling. Allocation ends with the `with` block."""

    def __init__(self, descriptor: int, memory: mmap.mmap | memoryview, spans: Sequence[tuple[int, int]]) -> None:
        """
        Args:
            descriptor: descriptor of the file; may be closed afterwards.
            spans: the byte ranges to fill, as (first, one past the last): small, ascending, starting at page
                boundaries. Empty: their memory is already allocated.

        Raises:
            OSError: the memory file system is full.
        """
        self.data = memoryview(memory)
        self._spans = spans
        self._there = 0 if spans else len(self.data)  # wanted bytes before this one have their memory
        self._ended = False
        if not spans:
            return
        _refuse_if_full(descriptor, sum(stop - start for start, stop in spans))
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)  # not sooner: a thread that reads storage may outlive `with`
        self(*spans[0])
        self._there = spans[0][1]
        Thread(target=self._go_ahead, daemon=True).start()

    def __call__(self, start: int, stop: int) -> memoryview:
        """A range of the bytes, to write to.

        Raises:
            OSError: the memory file system is full, or the bytes are no longer needed.
        """
        if self._ended:
            raise OSError(errno.ECANCELED, "memory requested after the end of the filling")
        if stop > self._there:
            os.posix_fallocate(self._descriptor, start, stop - start)  # without it, a SIGBUS or an MPI error later
        return self.data[start:stop]

    def all(self) -> memoryview:
        """The whole file, once memory for all wanted bytes is allocated. Slow. Raises OSError as a call does."""
        for start, stop in self._spans:
            self(start, stop)
        return self.data

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True

    def _go_ahead(self) -> None:
        """Allocates and maps memory, because the first write to an unmapped page costs several times as much."""
        for start, stop in self._spans:
            try:
                self(start, stop)
            except OSError:
                return  # a later call reports the error
            self._there = max(self._there, stop)
            populate_for_writing(self.data, start, stop - start)


def slices(nbytes: int) -> list[tuple[int, int]]:
    """The span of a whole file."""
    return [(start, min(start + SLICE_BYTES, nbytes)) for start in range(0, nbytes, SLICE_BYTES)]


def _refuse_if_full(descriptor: int, nbytes: int) -> None:
    """Refuses before the file system is full, because other processes use it too."""
    system, status = os.fstatvfs(descriptor), os.fstat(descriptor)
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and nbytes - 512 * status.st_blocks > free:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {nbytes >> 20} MiB wanted, {free >> 20} MiB free")
