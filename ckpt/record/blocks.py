"""Checksums over fixed-size blocks of a shard: a bad byte is found, and found to lie in one block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

BLOCK_BYTES = (
    4 << 20
)  # large enough that a record stays small, small enough that a range read verifies little more than it needs


def block_count(nbytes: int) -> int:
    """Blocks in a shard of `nbytes`; the last one may be short."""
    return -(-nbytes // BLOCK_BYTES)


def checksum(data: memoryview | bytes) -> str:
    """xxh3-128 of some bytes, as 32 hex digits: guards against corruption, not against an attacker."""
    return xxhash.xxh3_128_hexdigest(data)


def checksums(data: memoryview) -> tuple[str, ...]:
    """The checksum of every block of a shard, in order."""
    return tuple(checksum(data[start : start + BLOCK_BYTES]) for start in range(0, len(data), BLOCK_BYTES))


class ArrivingSums:
    """The checksums of a shard that arrives in pieces, made while a cache still has each: several times as fast.

    Pieces that follow each other within a block are summed as they come. A block that begins elsewhere is read later.
    """

    def __init__(self, data: memoryview) -> None:
        """`data`: the whole shard's memory, in which the pieces arrive."""
        self._data = data
        self._sums: dict[int, xxhash.xxh3_128] = {}  # by block, of its bytes so far
        self._next: dict[int, int] = {}  # by block, the byte that comes next

    def add(self, start: int, nbytes: int) -> None:
        """Bytes of the shard that are there now, and for good."""
        stop = start + nbytes
        while start < stop:
            block = start // BLOCK_BYTES
            end = min(stop, (block + 1) * BLOCK_BYTES)
            if start == block * BLOCK_BYTES:
                self._sums[block] = xxhash.xxh3_128(self._data[start:end])
                self._next[block] = end
            elif self._next.get(block) == start:
                self._sums[block].update(self._data[start:end])
                self._next[block] = end
            start = end

    def checksums(self) -> tuple[str, ...]:
        """Of every block, in order; all bytes are there."""
        return tuple(self._checksum(block) for block in range(block_count(len(self._data))))

    def bad_blocks(self, expected: Sequence[str]) -> list[int]:
        """Indices of blocks whose bytes do not match; all bytes are there."""
        return [i for i, (got, sealed) in enumerate(zip(self.checksums(), expected, strict=True)) if got != sealed]

    def _checksum(self, block: int) -> str:
        start, end = self._next.get(block, block * BLOCK_BYTES), min(len(self._data), (block + 1) * BLOCK_BYTES)
        self.add(start, end - start)
        return self._sums[block].hexdigest()


def bad_blocks(data: memoryview, expected: Sequence[str], blocks: Iterable[int] | None = None) -> list[int]:
    """Indices of blocks whose bytes do not match.

    Args:
        data: the whole shard.
        expected: one checksum per block of the shard.
        blocks: which blocks to look at; all when None.
    """
    if len(expected) != block_count(len(data)):
        return list(range(len(expected))) or [0]
    wanted = range(len(expected)) if blocks is None else blocks
    return [i for i in wanted if checksum(data[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES]) != expected[i]]


def blocks_of_range(start: int, nbytes: int) -> range:
    """The blocks that a byte range touches."""
    return range(start // BLOCK_BYTES, -(-(start + nbytes) // BLOCK_BYTES)) if nbytes else range(0)
