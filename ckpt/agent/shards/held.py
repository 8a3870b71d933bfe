"""The shards that nodes have in memory and on their own disks, by save."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from ckpt.config import Place
from ckpt.format.shard_record import SaveId


class ShardKind(IntEnum):
    """How a node has a shard, best first: as its own rank's, as a copy, on its disk (NVMe) only."""

    OWN = 0
    COPY = 1
    DISK = 2


class HeldShard(NamedTuple):
    """A shard on a node, as messages list it."""

    save: SaveId
    world_size: int
    rank: int
    kind: ShardKind

    def to_json(self) -> list[Any]:
        return [self.save.to_json(), self.world_size, self.rank, int(self.kind)]

    @classmethod
    def from_json(cls, value: list[Any]) -> HeldShard:
        save, world_size, rank, kind = value
        return cls(SaveId.from_json(save), world_size, rank, ShardKind(kind))


@dataclass(kw_only=True)
class Held:
    """The shards of one save on all nodes."""

    save: SaveId
    world_size: int  # number of ranks that saved it
    kinds: dict[tuple[int, int], ShardKind] = field(default_factory=dict)  # the best kind, by rank and node
    holders: dict[int, list[int]] = field(default_factory=dict)  # nodes by rank, best first

    @property
    def lost(self) -> list[int]:
        """The ranks whose shard no node has."""
        return [rank for rank in range(self.world_size) if not self.holders.get(rank)]

    @property
    def best(self) -> dict[int, int]:
        return {rank: nodes[0] for rank, nodes in self.holders.items() if nodes}

    @property
    def on_disks(self) -> tuple[int, ...]:
        """The ranks whose best holder has the shard only on its disk."""
        return tuple(rank for rank, node in self.best.items() if self.kinds[rank, node] is ShardKind.DISK)


def held_saves(
    shards: Iterable[Iterable[HeldShard]],
    preference: Callable[[int, int, ShardKind], Any] = lambda rank, node, kind: (kind, node),
) -> list[Held]:
    """Groups shards by save, the newest step first.

    Args:
        shards: those of each node, in the order of node ranks.
        preference: the sort key of a holder, from rank, node and kind.
    """
    found: dict[SaveId, Held] = {}
    for node, rows in enumerate(shards):
        for save, world_size, rank, kind in rows:
            kinds = found.setdefault(save, Held(save=save, world_size=world_size)).kinds
            kinds[rank, node] = min(kind, kinds.get((rank, node), kind))
    for held in found.values():
        for (rank, node), _ in sorted(held.kinds.items(), key=lambda item: preference(item[0][0], item[0][1], item[1])):
            held.holders.setdefault(rank, []).append(node)
    return sorted(found.values(), key=lambda held: (held.save.step, held.save.attempt), reverse=True)


def whole_in_place(shards: Iterable[Iterable[HeldShard]], place: Place) -> list[SaveId]:
    """The saves of which every rank has its own shard on its own node, this attempt's first, newest first."""
    in_place = (
        [
            one
            for one in rows
            if (one.kind, one.world_size, one.rank // place.ranks_per_node) == (ShardKind.OWN, place.world_size, node)
        ]
        for node, rows in enumerate(shards)
    )
    whole = [held.save for held in held_saves(in_place) if not held.lost]
    return sorted(whole, key=lambda save: (save.attempt, save.line.number, save.step), reverse=True)
