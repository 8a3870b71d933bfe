"""A committed step other than the one that the agents restore: each rank reads what it needs from the tier itself."""

from __future__ import annotations

import mmap
from typing import Any

from ckpt.config import CheckpointConfig
from ckpt.errors import CheckpointError
from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId
from ckpt.tiers.open import lower_tiers
from ckpt.tiers.reads import read_blocks, reader
from ckpt.tiers.tier import Tier
from ckpt.worker.load.shard_reader import SavedStep


def stored_step(config: CheckpointConfig, step: int, threads: int) -> SavedStep:
    """A step's shards, in the nearest tier that all nodes see and that has it.

    Raises:
        CheckpointError: none has it, or its manifest is damaged.
        OSError: a tier could not be read.
    """
    tiers = lower_tiers(config, node=None)
    for tier in tiers.values():
        for entry in tier.catalog():
            if entry.step == step and entry.unread:
                raise entry.unread
            if entry.step == step and entry.save:
                store = _Store(tier, entry.save)
                return SavedStep(
                    store, step=step, world_size=store.world_size, node=tier.where, open_s=0, threads=threads,
                    mapped=store.fetched,
                )  # fmt: skip
            if entry.step < step:
                break
    where = ", ".join(tier.where for tier in tiers.values()) or "a shared or S3 tier: none is configured"
    raise CheckpointError(f"step {step} is neither the newest that can be recovered nor in {where}")


class _Store:
    """Answers as an agent would that has the whole step."""

    def __init__(self, tier: Tier, save: SaveId) -> None:
        self._tier, self._save = tier, save
        self._shards = tier.read_manifest(save).shards
        self.world_size = len(self._shards)
        self._fetched: dict[str, memoryview] = {}  # the shard asked for last, where it cannot be mapped

    def request(self, op: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        place = self._shards[fields["rank"]]
        path, base = self._tier.data_path(self._save, place.file), place.offset
        where = str(path) if path else f"{self._tier.where}, {place.file}"
        if op == "bad":
            raise CheckpointError(
                f"step {self._save.step}: {where}: the shard of rank {place.rank} is not intact; take another step"
            )
        if path is None:
            base, self._fetched = 0, {where: self._fetch(place, fields["blocks"])}
        return {"path": where, "base": base, "record": place.record.to_json()}

    def fetched(self, where: str, nbytes: int) -> memoryview | None:
        return self._fetched.pop(where, None)

    def _fetch(self, place: ShardPlace, blocks: list[int] | None) -> memoryview:
        data = memoryview(mmap.mmap(-1, max(1, place.record.nbytes)))[: place.record.nbytes]  # only what is filled
        read_blocks(reader(self._tier, self._save, place), data, blocks)
        return data
