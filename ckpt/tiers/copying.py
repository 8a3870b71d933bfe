"""Copies a committed step from one tier to another. Verifies all bytes, and commits last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId
from ckpt.tiers.reads import verified_shard
from ckpt.tiers.tier import Tier


def copy_step(source: Tier, destination: Tier, save: SaveId, advance: Callable[[int], None]) -> bool:
    """Copy a step, one node file at a time. It may be killed and repeated: the manifest is written last.

    Args:
        destination: another directory or bucket, of the same namespace.

    Returns:
        False if the destination has the step already.

    Raises:
        CorruptError: bytes do not verify. Nothing was committed.
        NamespaceError: the destination belongs to another namespace or user.
    """
    destination.prepare()
    if save in destination.steps():
        return False
    manifest = source.read_manifest(save)
    files: dict[str, list[ShardPlace]] = defaultdict(list)
    for place in manifest.shards:
        files[place.file].append(place)
    copied = []
    destination.begin(save)
    for file, places in files.items():
        ordered = sorted(places, key=lambda place: place.offset)
        shards = [(place.record, verified_shard(source, save, place, advance)) for place in ordered]
        copied += destination.write_node(save, _node_rank(file), shards)
    destination.commit(save, manifest.world_size, copied)
    return True


def _node_rank(file: str) -> int:
    """The number in `node-NNNNN.data` or `rank-NNNNN.data`, whose form the manifest has checked; no step has both."""
    return int(file.removesuffix(".data").rpartition("-")[2])
