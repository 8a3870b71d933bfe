"""Reads one committed step of a tier as named tensors and values, without an agent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.reads import verified_shard
from ckpt.tiers.tier import Tier
from ckpt.worker.load.contents import StoredTensor, stored_state
from ckpt.worker.load.shard_reader import Read, SavedStep


@dataclass(frozen=True, kw_only=True)
class FullStep:
    """A step's tensors and values under torch's dotted names."""

    save: SaveId
    tensors: dict[str, StoredTensor]
    values: dict[str, Any]
    mappings: dict[str, Any]  # torch's: from name to path

    def full(self, name: str) -> torch.Tensor:
        """A whole tensor, combined from the parts of all ranks."""
        found = self.tensors[name].read()
        return torch.from_numpy(found) if isinstance(found, np.ndarray) else found


class _TierStep(SavedStep):
    """A saved step whose shards are read from a tier, without an agent."""

    def __init__(self, tier: Tier, save: SaveId) -> None:
        manifest = tier.read_manifest(save)
        self.step = save.step
        self.world_size = manifest.world_size
        self.bytes_read = 0
        self._places = list(manifest.shards)
        self._data: list[memoryview] = []

    def map(self, tier: Tier, save: SaveId, advance: Callable[[int], None]) -> None:
        """Maps all shards and verifies every byte of them."""
        self._data = [verified_shard(tier, save, place, advance) for place in self._places]

    def record(self, rank: int) -> ShardRecord:
        return self._places[rank].record

    def read(self, reads: Iterable[Read]) -> None:
        for read in reads:
            self._hand_out(self._data[read.rank], replace(read, flat=None))  # without another verification


def read_stored(
    tier: Tier, save: SaveId, rank: int = 0, advance: Callable[[int], None] = lambda nbytes: None
) -> FullStep:
    """Maps a step and verifies every byte of it.

    Args:
        rank: the rank whose plain tensors, arrays and values are read; DTensors are combined from all ranks.

    Raises:
        CorruptError: bytes do not verify. The message names the file.
        ConfigError: there is no such rank.
    """
    step = _TierStep(tier, save)
    flat, mappings = stored_state(step, rank)
    if mappings is None:
        flat, mappings = _flattened(flat)
    step.map(tier, save, advance)
    tensors = {name: value for name, value in flat.items() if isinstance(value, StoredTensor)}
    values = {name: value for name, value in flat.items() if name not in tensors}
    return FullStep(save=save, tensors=tensors, values=values, mappings=mappings)


def _flattened(state: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state as torch flattens it: values by dotted name, and the path of each name.

    Torch flattens lists only if they contain its own tensors, and never tuples or deques. So placeholders stand for
    stored tensors, and lists for tuples and deques that contain some.
    """
    standing: dict[int, tuple[torch.Tensor, StoredTensor]] = {}  # by id of the placeholder

    def for_torch(value: Any) -> Any:
        if isinstance(value, StoredTensor):
            placeholder = torch.empty(0, device="meta")
            standing[id(placeholder)] = (placeholder, value)
            return placeholder
        if isinstance(value, dict):
            return {key: for_torch(item) for key, item in value.items()}
        if isinstance(value, (list, tuple, deque)):
            items = [for_torch(item) for item in value]
            return items if any(isinstance(item, (torch.Tensor, dict, list)) for item in items) else value
        return value

    flat, mappings = flatten_state_dict(for_torch(state))
    return {name: standing[id(value)][1] if id(value) in standing else value for name, value in flat.items()}, mappings
