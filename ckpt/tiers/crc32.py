"""The checksum that S3 compares every part with before it keeps it: CRC-32, as zlib has it.

ISA-L makes it several times faster than zlib. botocore would use zlib, and read the body once more for it.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import zlib
from collections.abc import Callable

from ckpt.record.isal import isal


def crc32(body: bytearray) -> int:
    """Of all bytes."""
    fast = isal_crc32()
    return fast(body) if fast else zlib.crc32(body)


def crc32_header(body: bytearray) -> str:
    """As S3 wants it told: big-endian, in base64."""
    return base64.b64encode(crc32(body).to_bytes(4, "big")).decode()


@functools.cache
def isal_crc32() -> Callable[[bytearray], int] | None:
    """`crc32` by ISA-L; None where the library is not there."""
    library = isal()
    function = getattr(library, "crc32_gzip_refl", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64)
    function.restype = ctypes.c_uint32

    def fast(body: bytearray) -> int:
        return int(function(0, (ctypes.c_char * len(body)).from_buffer(body), len(body)))

    return fast
