"""Maps many pages in one call before they are used, and without the GIL, which mmap's own methods hold."""

from __future__ import annotations

import ctypes
import mmap

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # madvise(2), Linux 5.14; on older kernels pages are mapped at first use
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate_for_writing(memory: mmap.mmap | memoryview, start: int = 0, nbytes: int | None = None) -> None:
    """Map pages of a shared mapping for writing. `start` must be the first byte of a page. New pages become zeros."""
    nbytes = len(memory) - start if nbytes is None else nbytes
    _libc.madvise(ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start, nbytes, _POPULATE_WRITE)


def populate_for_reading(address: int, nbytes: int) -> None:
    """Map the pages of a range of a mapping for reading."""
    start = address - address % mmap.PAGESIZE
    _libc.madvise(start, address + nbytes - start, _POPULATE_READ)
