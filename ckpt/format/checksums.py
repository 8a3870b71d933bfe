"""Checksums over fixed-size blocks of a shard, which show that a block is damaged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

# Large enough for small records, small enough that a range read verifies little more than its bytes.
BLOCK_BYTES = 4 << 20


def block_count(nbytes: int) -> int:
    """The number of blocks in a shard of `nbytes`. The last block may be short."""
    return -(-nbytes // BLOCK_BYTES)


def span_of(block: int, nbytes: int) -> tuple[int, int]:
    """The first byte of a block, and one past its last, in a shard of `nbytes`."""
    return block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, nbytes)


def checksum(data: memoryview | bytes) -> str:
    """The xxh3-128 of `data` as 32 hex digits. It detects corruption, not an attack."""
    return xxhash.xxh3_128_hexdigest(data)


def checksums(data: memoryview) -> tuple[str, ...]:
    """The checksum of every block of a shard, in order."""
    return tuple(checksum(data[start : start + BLOCK_BYTES]) for start in range(0, len(data), BLOCK_BYTES))


def damaged_blocks(data: memoryview, expected: Sequence[str], blocks: Iterable[int] | None = None) -> list[int]:
    """Indices of blocks whose bytes do not match.

    Args:
        expected: one checksum per block of the shard.
        blocks: the blocks to check; None: all.
    """
    if len(expected) != block_count(len(data)):
        return list(range(len(expected))) or [0]
    wanted = range(len(expected)) if blocks is None else blocks
    return [i for i in wanted if checksum(data[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES]) != expected[i]]


class Arriving:
    """The checksums of a shard whose bytes arrive in any order. Each is computed once its block is complete."""

    def __init__(self, data: memoryview) -> None:
        self.sums = [""] * block_count(len(data))
        self._data = data
        self._missing = [last - first for first, last in (span_of(i, len(data)) for i in range(len(self.sums)))]

    def landed(self, start: int, stop: int) -> None:
        """Records that bytes [start, stop) have arrived. Each byte must be reported once."""
        for i in blocks_of_range(start, stop - start):
            first, last = span_of(i, len(self._data))
            self._missing[i] -= min(stop, last) - max(start, first)
            if not self._missing[i]:
                self.sums[i] = checksum(self._data[first:last])


def blocks_of_range(start: int, nbytes: int) -> range:
    """The blocks that contain a byte range."""
    return range(start // BLOCK_BYTES, -(-(start + nbytes) // BLOCK_BYTES)) if nbytes else range(0)
