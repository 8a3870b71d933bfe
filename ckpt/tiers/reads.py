"""Reads shards from a tier, whole or by blocks, in few large reads, and verifies them.

A block that does not match its checksum is read once more before it counts as damaged: the error may be in transit.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from ckpt.errors import CorruptError
from ckpt.format.atomic_files import map_regular
from ckpt.format.checksums import BLOCK_BYTES, checksum, damaged_blocks
from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId
from ckpt.tiers.tier import Tier

WINDOW_BLOCKS = 16  # number of blocks in one read of a verification; enough for parallel connections

ReadAt = Callable[[int, memoryview], None]  # (start, memory): fills the memory with a shard's bytes from `start` on


def reader(tier: Tier, save: SaveId, place: ShardPlace) -> ReadAt:
    """The function that reads one shard of a tier."""
    return lambda start, into: tier.read(save, place, start, into)


def read_blocks(read: ReadAt, data: memoryview, blocks: Iterable[int] | None) -> None:
    """Fill blocks (None: all) of `data`, the memory of the whole shard. Neighbouring blocks are one read. No checks."""
    for first, end in runs(range(-(-len(data) // BLOCK_BYTES)) if blocks is None else sorted(set(blocks))):
        read(first * BLOCK_BYTES, data[first * BLOCK_BYTES : end * BLOCK_BYTES])


def read_whole(read: ReadAt, place: ShardPlace, data: memoryview) -> None:
    """Fill a shard's memory and verify it. Raises CorruptError if a block does not match its checksum."""
    read_blocks(read, data, None)
    if damaged := damaged_blocks(data, place.record.blocks):
        read_blocks(read, data, damaged)
        if damaged := damaged_blocks(data, place.record.blocks, damaged):
            raise CorruptError(_mismatch(place, damaged[0]))


def verify(read: ReadAt, place: ShardPlace) -> None:
    """Verify a shard through a buffer of limited size. Raises CorruptError at the first block that does not match."""
    for block in find_damaged(read, place.record.nbytes, place.record.blocks):
        raise CorruptError(_mismatch(place, block))


def verified_shard(tier: Tier, save: SaveId, place: ShardPlace, advance: Callable[[int], None]) -> memoryview:
    """A shard's bytes, with every block verified: mapped from the tier's file, or read into an unlinked file.

    Args:
        tier: the tier of the shard. If its file cannot be mapped, the shard is read into an unlinked file in TMPDIR,
            because it may be larger than memory.

    Raises:
        CorruptError: bytes do not match their checksum. The message names the file.
    """
    window_bytes = WINDOW_BLOCKS * BLOCK_BYTES
    nbytes, path = place.record.layout.nbytes, tier.data_path(save, place.file)
    if not nbytes:
        return memoryview(b"")
    data = _room(nbytes) if path is None else map_regular(path, place.offset, nbytes)
    for start in range(0, nbytes, window_bytes):
        end = min(nbytes, start + window_bytes)
        if path is None:
            tier.read(save, place, start, data[start:end])
        blocks = range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        if damaged := damaged_blocks(data, place.record.blocks, blocks):
            where = f"{tier.where}, step {save.step}, {place.file}"
            raise CorruptError(f"{where}: block {damaged[0]} of rank {place.rank} does not match; take another step")
        advance(end - start)
    return data


def _room(nbytes: int) -> memoryview:
    with tempfile.TemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)  # a full disk raises an error here instead of a SIGBUS later
        return memoryview(mmap.mmap(file.fileno(), nbytes))


def find_damaged(read: ReadAt, nbytes: int, expected: Sequence[str]) -> Iterator[int]:
    """Yield the indices of the blocks of a shard or parity that do not match their checksums.

    Raises:
        OSError, CheckpointError: the data cannot be read to their end.
    """
    buffer = memoryview(bytearray(min(nbytes, WINDOW_BLOCKS * BLOCK_BYTES)))
    for first in range(0, len(expected), WINDOW_BLOCKS):
        start = first * BLOCK_BYTES
        window = buffer[: min(len(buffer), nbytes - start)]
        read(start, window)
        for i in range(-(-len(window) // BLOCK_BYTES)):
            block = window[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES]
            if checksum(block) != expected[first + i]:
                read(start + i * BLOCK_BYTES, block)
                if checksum(block) != expected[first + i]:
                    yield first + i


def runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive numbers, each as (first, last + 1). The numbers are in order."""
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield run[0], run[-1] + 1


def _mismatch(place: ShardPlace, block: int) -> str:
    return f"{place.file}: block {block} of rank {place.rank} does not match its checksum"
