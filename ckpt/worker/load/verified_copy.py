"""Copies and verifies in one pass over memory, with several threads: each piece is checksummed while it is in the
cache."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import xxhash

from ckpt.format.checksums import BLOCK_BYTES, block_count
from ckpt.native.memcpy import memcpy

# Small enough to stay in a core's cache between the copy and the checksum. Both release the GIL. With smaller pieces,
# taking it again costs more than the cache gains. What holds it is kept short, because all threads wait for it.
_PIECE_BYTES = 512 << 10


@dataclass(frozen=True, kw_only=True)
class Region:
    """A range of a shard, and its target."""

    start: int  # offset in the shard
    target: np.ndarray  # bytes


def copy_verified(
    data: memoryview, expected: Sequence[str], blocks: Sequence[int], regions: Sequence[Region], threads: int
) -> list[int]:
    """Copies regions of a shard. The copies are valid only if the returned list is empty.

    Args:
        expected: one checksum (ckpt.format.checksums) per block of the shard.
        blocks: the blocks to verify, which hold all regions.
        regions: regions to copy; they do not overlap.

    Returns:
        The blocks whose bytes do not match.
    """
    if len(expected) != block_count(len(data)):
        return list(blocks) or [0]
    source = np.frombuffer(data, np.uint8).ctypes.data
    # of each region: its first byte, one past its last, and its target's address less the first byte
    spans = sorted((r.start, r.start + r.target.size, r.target.ctypes.data - r.start) for r in regions if r.target.size)
    starts = [start for start, _, _ in spans]

    def copy_piece(first: int, last: int) -> None:
        near = spans[max(0, bisect.bisect_right(starts, first) - 1) : bisect.bisect_left(starts, last)]
        for start, end, target in near:
            low, high = max(first, start), min(last, end)
            if low < high:
                memcpy(target + low, source + low, high - low)

    def is_damaged(block: int) -> bool:
        end = min(len(data), (block + 1) * BLOCK_BYTES)
        state = xxhash.xxh3_128()
        for first in range(block * BLOCK_BYTES, end, _PIECE_BYTES):
            last = min(end, first + _PIECE_BYTES)
            copy_piece(first, last)
            state.update(data[first:last])
        return state.hexdigest() != expected[block]

    if threads == 1 or len(blocks) < 2:
        return [block for block in blocks if is_damaged(block)]
    with ThreadPoolExecutor(threads, thread_name_prefix="ckpt-verify") as pool:
        return [block for block, damaged in zip(blocks, pool.map(is_damaged, blocks), strict=True) if damaged]
