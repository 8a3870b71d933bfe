"""Reads one committed step as named tensors and values, without an agent: mapped, verified and combined."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from ckpt.errors import CheckpointError, ConfigError, CorruptError
from ckpt.format.boxes import Box, cover
from ckpt.format.json_values import decode, tag_of
from ckpt.format.layout import Chunk
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.tier import Tier
from ckpt.tiers.verified import verified_shard
from ckpt.worker.load.match import DCP
from ckpt.worker.tensors import DTENSOR, STATE, TAGS, chunk_box, torch_dtype, view_bytes


@dataclass(frozen=True, kw_only=True)
class StoredBox:
    """A box of a tensor, and its mapped bytes."""

    box: Box
    data: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class FullStep:
    """A step's tensors and values under torch's dotted names."""

    save: SaveId
    shapes: dict[str, tuple[int, ...]]
    parts: dict[str, list[StoredBox]]  # by tensor; together they have each element once
    values: dict[str, Any]
    mappings: dict[str, Any] = field(default_factory=dict)  # torch's: from name to path

    def full(self, name: str) -> torch.Tensor:
        """A whole tensor. If one part has all of it, the tensor is the mapped bytes themselves."""
        parts = self.parts[name]
        if len(parts) == 1 and tuple(parts[0].data.shape) == self.shapes[name]:
            return parts[0].data
        whole = torch.empty(self.shapes[name], dtype=parts[0].data.dtype)
        everything = Box((0,) * whole.dim(), tuple(whole.shape))
        for part in parts:
            whole[part.box.within(everything)] = part.data
        return whole


def read_stored(
    tier: Tier, save: SaveId, rank: int = 0, advance: Callable[[int], None] = lambda nbytes: None
) -> FullStep:
    """Maps a step and verifies every byte of it.

    Args:
        tier: the tier of the step.
        save: the save to read.
        rank: the rank whose plain tensors, arrays and values are read; DTensors are combined from all ranks.
        advance: called with the number of bytes after each verified part.

    Raises:
        CorruptError: bytes do not verify. The message names the file.
        ConfigError: there is no such rank.
        OSError: a file cannot be read.
    """
    manifest = tier.read_manifest(save)
    if not 0 <= rank < manifest.world_size:
        raise ConfigError(f"step {save.step}: no rank {rank}; it was saved by {manifest.world_size} ranks")
    shards = [(place.record, verified_shard(tier, save, place, advance)) for place in manifest.shards]
    shards = [*shards[rank:], *shards[:rank]]  # replicas are taken from the first rank that has them
    tree = shards[0][0].layout.tree
    return _from_dcp(save, shards) if tag_of(tree) == DCP else _from_tree(save, tree, shards)


def _from_dcp(save: SaveId, shards: list[tuple[ShardRecord, memoryview]]) -> FullStep:
    values: dict[str, Any] = {}
    mappings: dict[str, Any] = {}
    for record, _ in reversed(shards):
        content = record.layout.tree[DCP]
        mappings.update(decode(content["mappings"]))
        values.update({name: decode(node) for name, node in content["objects"]})
    names = {chunk.key: chunk.key for record, _ in shards for chunk in record.layout.chunks}
    return _stored(save, shards, names, values, mappings)


def _from_tree(save: SaveId, tree: Any, shards: list[tuple[ShardRecord, memoryview]]) -> FullStep:
    """Placeholders stand for tensors while torch itself flattens the state."""
    keys: dict[int, tuple[str, str]] = {}  # by id of the placeholder: tag and key
    standing: list[torch.Tensor] = []  # keeps the placeholders alive, so that ids stay unique

    def resolve(tag: str, content: Any) -> Any:
        if tag == STATE:
            return decode(content, resolve)
        if tag not in TAGS:
            raise CorruptError(f"step {save.step}: unknown tag {tag!r:.40}")
        standing.append(torch.empty(0, device="meta"))
        keys[id(standing[-1])] = (tag, content)
        return standing[-1]

    flat, mappings = flatten_state_dict(_as_lists(decode(tree, resolve)))
    named = {name: keys[id(value)] for name, value in flat.items() if id(value) in keys}
    values = {name: value for name, value in flat.items() if name not in named}
    names = {key: name for name, (_, key) in named.items()}
    everywhere = {chunk.key for chunk in shards[0][0].layout.chunks if chunk.spread is not None}
    everywhere |= {key for tag, key in keys.values() if tag == DTENSOR}
    return _stored(save, shards, names, values, mappings, everywhere)


def _as_lists(value: Any) -> Any:
    """The state with lists in place of tuples and deques that contain tensors, because torch flattens only lists."""
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        items = [_as_lists(item) for item in value]
        return items if any(isinstance(item, (torch.Tensor, dict, list)) for item in items) else value
    return value


def _stored(
    save: SaveId, shards: list[tuple[ShardRecord, memoryview]], names: dict[str, str], values: dict[str, Any],
    mappings: dict[str, Any], everywhere: set[str] | None = None,
) -> FullStep:  # fmt: skip
    """Chooses the parts of each tensor, so that each element is read once.

    Args:
        names: names of the wanted tensors, by key.
        everywhere: keys whose parts may be in any shard, not only in the first; None: all keys.
    """
    offers: dict[str, list[tuple[Box, tuple[Chunk, memoryview]]]] = {key: [] for key in names}
    for number, (record, data) in enumerate(shards):
        for chunk in record.layout.chunks:
            if chunk.key in offers and (number == 0 or everywhere is None or chunk.key in everywhere):
                offers[chunk.key].append((chunk_box(chunk), (chunk, data)))
    shapes, parts = {}, {}
    for key, name in names.items():
        if not offers[key]:
            raise CorruptError(f"step {save.step}: {name}: named, but not in any shard")
        shape = offers[key][0][1][0].shape
        shapes[name] = shape
        parts[name] = list(_parts(Box((0,) * len(shape), shape), name, offers[key]))
    return FullStep(save=save, shapes=shapes, parts=parts, values=values, mappings=mappings)


def _parts(whole: Box, name: str, offers: list[tuple[Box, tuple[Chunk, memoryview]]]) -> Iterator[StoredBox]:
    chosen, missing = cover(whole, offers)
    if missing:
        raise CheckpointError(f"{name}: no rank saved the elements from {missing[0].offsets}, size {missing[0].sizes}")
    for box, outer, (chunk, data) in chosen:
        tensor = view_bytes(data, chunk.start, torch_dtype(chunk), chunk.sizes)
        yield StoredBox(box=box, data=tensor[box.within(outer)])
    if not whole.elements:
        yield StoredBox(box=whole, data=torch.empty(whole.sizes, dtype=torch_dtype(offers[0][1][0])))
