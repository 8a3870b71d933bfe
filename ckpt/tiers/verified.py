"""A shard of a tier as verified memory: mapped from the tier's file, or read into an unlinked file."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable

from ckpt.errors import CorruptError
from ckpt.format.atomic_files import map_regular
from ckpt.format.checksums import BLOCK_BYTES, damaged_blocks
from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId
from ckpt.tiers.reads import WINDOW_BLOCKS
from ckpt.tiers.tier import Tier

_WINDOW_BYTES = WINDOW_BLOCKS * BLOCK_BYTES


def verified_shard(tier: Tier, save: SaveId, place: ShardPlace, advance: Callable[[int], None]) -> memoryview:
    """A shard's bytes, with every block verified.

    Args:
        tier: the tier of the shard. If its file cannot be mapped, the shard is read into an unlinked file in TMPDIR,
            because it may be larger than memory.

    Raises:
        CorruptError: bytes do not match their checksum. The message names the file.
    """
    nbytes, path = place.record.layout.nbytes, tier.data_path(save, place.file)
    if not nbytes:
        return memoryview(b"")
    data = _room(nbytes) if path is None else map_regular(path, place.offset, nbytes)
    for start in range(0, nbytes, _WINDOW_BYTES):
        end = min(nbytes, start + _WINDOW_BYTES)
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
