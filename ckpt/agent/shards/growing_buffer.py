"""Memory for a shard yet to be filled, taken from the system a little ahead of whoever fills it.

New memory costs about as much as the bytes that arrive there: both go on at once.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Sequence
from threading import Thread
from types import TracebackType

from ckpt.native.pages import populate_for_writing

SLICE_BYTES = 8 << 20  # a multiple of any page size; some milliseconds


class Room:
    """Bytes of a file in a memory directory, while they are filled. Ends with its `with` block."""

    def __init__(self, descriptor: int, memory: mmap.mmap | memoryview, spans: Sequence[tuple[int, int]]) -> None:
        """
        Args:
            descriptor: the file's; may be closed afterwards.
            memory: the file, mapped for writing.
            spans: which bytes, as (first, one past the last); ascending, from a page's first byte on; small.
                Empty: their memory is there already.

        Raises:
            OSError: the memory file system is full.
        """
        self.data = memoryview(memory)
        self._spans = spans
        self._there = 0 if spans else len(self.data)  # what is wanted of the first so many bytes has its memory
        self._ended = False
        if not spans:
            return
        _refuse_if_full(descriptor, sum(stop - start for start, stop in spans))
        self._descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self._descriptor)  # no sooner: a thread that reads storage may outlive `with`
        self(*spans[0])
        self._there = spans[0][1]
        Thread(target=self._go_ahead, daemon=True).start()

    def __call__(self, start: int, stop: int) -> memoryview:
        """Some of the bytes, to be written to.

        Raises:
            OSError: the memory file system is full, or nobody waits for the bytes any more.
        """
        if self._ended:
            raise OSError(errno.ECANCELED, "memory asked for that is not filled any more")
        if stop > self._there:
            os.posix_fallocate(self._descriptor, start, stop - start)  # else SIGBUS, or an error of MPI's, later
        return self.data[start:stop]

    def all(self) -> memoryview:
        """The file, with memory for all that is wanted of it: takes a while. Raises OSError as a call does."""
        for start, stop in self._spans:
            self(start, stop)
        return self.data

    def __enter__(self) -> Room:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True

    def _go_ahead(self) -> None:
        """Takes memory and maps it: a page that is not mapped when it is written to costs several times as much."""
        for start, stop in self._spans:
            try:
                self(start, stop)
            except OSError:
                return  # who wants these bytes is told, if anybody does
            self._there = max(self._there, stop)
            populate_for_writing(self.data, start, stop - start)


def slices(nbytes: int) -> list[tuple[int, int]]:
    """A whole file."""
    return [(start, min(start + SLICE_BYTES, nbytes)) for start in range(0, nbytes, SLICE_BYTES)]


def _refuse_if_full(descriptor: int, nbytes: int) -> None:
    """Better than to fill it to its end first: others live there."""
    system, status = os.fstatvfs(descriptor), os.fstat(descriptor)
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and nbytes - 512 * status.st_blocks > free:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {nbytes >> 20} MiB wanted, {free >> 20} MiB free")
