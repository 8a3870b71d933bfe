"""One committed step from one shared directory to another: verified on the way, committed last."""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Callable

from ckpt.errors import CorruptError
from ckpt.record.blocks import BLOCK_BYTES, bad_blocks
from ckpt.record.manifest import ShardPlace, open_regular
from ckpt.record.shard import SaveId
from ckpt.tiers.posix import SharedTier


def copy_step(source: SharedTier, destination: SharedTier, save: SaveId, advance: Callable[[int], None]) -> bool:
    """Copies a step, a node file at a time. May be killed and repeated: it counts only when its manifest is there.

    Args:
        source: where it is committed.
        destination: another directory, of the same namespace.
        save: the step.
        advance: told of every so many bytes verified, and again when they are written.

    Returns:
        False when the destination has the step already.

    Raises:
        CorruptError: bytes do not verify, and nothing was committed.
        NamespaceError: the destination is another's.
        OSError: storage fails or is full.
    """
    destination.prepare()
    if save in destination.steps():
        return False
    manifest = source.read_manifest(save)
    files: dict[str, list[ShardPlace]] = defaultdict(list)
    for place in manifest.shards:
        files[place.file].append(place)
    copied = []
    for file, places in files.items():
        ordered = sorted(places, key=lambda place: place.offset)
        shards = [(place.record, _verified(source, save, place, advance)) for place in ordered]
        copied += destination.write_node(save, _node_rank(file), shards)
        advance(sum(place.record.layout.nbytes for place in ordered))
    destination.commit(save, manifest.world_size, copied)
    return True


def _verified(tier: SharedTier, save: SaveId, place: ShardPlace, advance: Callable[[int], None]) -> memoryview:
    path, nbytes = tier.data_path(save, place.file), place.record.layout.nbytes
    if not nbytes:
        return memoryview(b"")
    descriptor = open_regular(path)
    try:
        mapped = memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ))
    finally:
        os.close(descriptor)
    data = mapped[place.offset : place.offset + nbytes]
    if len(data) < nbytes:
        raise CorruptError(f"{path}: ends before byte {place.offset + nbytes}")
    done = 0
    for block in range(len(place.record.blocks)):
        if bad_blocks(data, place.record.blocks, [block]):
            raise CorruptError(f"{path}: block {block} of rank {place.rank} does not match; copy another step")
        step_bytes = min(nbytes, (block + 1) * BLOCK_BYTES) - done
        advance(step_bytes)
        done += step_bytes
    return data


def _node_rank(file: str) -> int:
    """`node-NNNNN.data`; the manifest has checked the form."""
    return int(file.removeprefix("node-").removesuffix(".data"))
