"""The checksum of a part is zlib's CRC-32, by ISA-L and without it."""

from __future__ import annotations

import os
import zlib

import pytest

from ckpt.tiers import crc32

SIZES = (0, 1, 63, 64, 65, 4095, 4096, 1 << 20, (1 << 20) + 17)


def test_isal_is_there_where_the_wheel_brings_it() -> None:
    assert crc32.isal_crc32() is not None


@pytest.mark.parametrize("by", ["isal", "zlib"])
def test_every_size_has_zlibs_checksum(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    if by == "zlib":
        monkeypatch.setattr(crc32, "isal_crc32", lambda: None)
    for size in SIZES:
        body = bytearray(os.urandom(size))
        assert crc32.crc32(body) == zlib.crc32(body)


def test_a_header_is_as_s3_has_it() -> None:
    assert crc32.crc32_header(bytearray(b"123456789")) == "y/Q5Jg=="  # 0xcbf43926, the check value of CRC-32
