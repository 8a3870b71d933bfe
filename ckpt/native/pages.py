"""Maps many pages in one call before they are used, and without the GIL, which mmap's own methods hold."""

from __future__ import annotations

import ctypes
import mmap

_POPULATE_WRITE = 23  # madvise(2), Linux 5.14; on older kernels pages are mapped at first use
_AT_ONCE_BYTES = 16 << 20  # one call locks the address space: meanwhile no thread can start or map memory
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate_for_writing(memory: mmap.mmap | memoryview, start: int = 0, nbytes: int | None = None) -> None:
    """Map pages of a shared mapping for writing. `start` must be the first byte of a page. New pages become zeros."""
    end = len(memory) if nbytes is None else start + nbytes
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for first in range(start, end, _AT_ONCE_BYTES):
        _libc.madvise(address + first, min(_AT_ONCE_BYTES, end - first), _POPULATE_WRITE)
