"""Reads which shards of a run a node's memory has. Changes nothing."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from ckpt.errors import CheckpointError, CorruptError
from ckpt.format.atomic_files import map_regular
from ckpt.format.checksums import damaged_blocks
from ckpt.format.memory_names import COPY, OWN, data_file, names_of
from ckpt.format.shard_record import SaveId, ShardRecord, read_record
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.quarantine import noted_reason

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Left:
    """The shards of one save on this node, by rank: names of those of its own ranks, and of copies of others'."""

    world_size: int
    own: dict[int, str] = field(default_factory=dict)
    copies: dict[int, str] = field(default_factory=dict)


def left_in(directory: Path, run_id: str, namespace: str) -> dict[SaveId, Left]:
    """The saves by their records alone, without quarantined ones. A record that cannot be read counts as absent."""
    found: dict[SaveId, Left] = {}
    for name in names_of(os.listdir(directory), OWN, COPY):
        try:
            record = read_record(directory, str(name))
        except (CheckpointError, OSError) as error:
            log.warning("%s: %s; passed over", directory / str(name), error)
            continue
        is_quarantined = noted_reason(directory, directory_name(record.save)) is not None
        if (record.save.run_id, record.namespace) == (run_id, namespace) and not is_quarantined:
            left = found.setdefault(record.save, Left(world_size=record.world_size))
            (left.own if name.kind == OWN else left.copies)[record.rank] = str(name)
    return found


def verified(directory: Path, name: str, save: SaveId, rank: int) -> tuple[ShardRecord, memoryview]:
    """A shard's record and its mapped bytes, with every block verified.

    Raises:
        CorruptError: it does not verify, or is another shard now.
        OSError: the file is gone.
    """
    record, path = read_record(directory, name), data_file(directory, name)
    if (record.save, record.rank) != (save, rank):
        raise CorruptError(f"{path}: is of rank {record.rank}, step {record.save.step} now, was rank {rank}")
    data = map_regular(path, 0, record.nbytes)
    if damaged := damaged_blocks(data, record.blocks):
        raise CorruptError(f"{path}: block {damaged[0]} of rank {record.rank} does not match its checksum")
    return record, data


def is_still(directory: Path, name: str, record: ShardRecord) -> bool:
    """Whether a shard is unchanged: its record is removed before it is overwritten."""
    try:
        return read_record(directory, name) == record
    except (CheckpointError, OSError):
        return False
