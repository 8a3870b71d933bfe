"""Mapping pages before they are used, many at a time and without holding Python's lock, as mmap's own calls would."""

from __future__ import annotations

import ctypes
import mmap

_POPULATE_READ, _POPULATE_WRITE = 22, 23  # madvise(2), Linux 5.14; older kernels refuse, and pages come one by one
_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def populate_for_writing(memory: mmap.mmap | memoryview, start: int = 0, nbytes: int | None = None) -> None:
    """Maps pages of a shared mapping, from a page's first byte on; those never touched are cleared on the way."""
    nbytes = len(memory) - start if nbytes is None else nbytes
    _libc.madvise(ctypes.addressof(ctypes.c_char.from_buffer(memory)) + start, nbytes, _POPULATE_WRITE)


def populate_for_reading(address: int, nbytes: int) -> None:
    """Maps the pages that hold some bytes of a mapping."""
    start = address - address % mmap.PAGESIZE
    _libc.madvise(start, address + nbytes - start, _POPULATE_READ)
