"""The shards that nodes have in memory and on their own disks, by save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckpt.agent.shards.memory_store import MemoryStore
from ckpt.agent.shards.node_disk import NodeDisk
from ckpt.config import Place
from ckpt.format import memory_names
from ckpt.format.shard_record import SaveId

OWN, COPY, DISK = range(3)  # how a node has a shard: as its own rank's, as a copy, on its disk (NVMe) only
Row = Sequence[Any]  # a shard in a message: save, world size, rank, and one of these kinds


@dataclass(kw_only=True)
class Held:
    """The shards of one save on all nodes."""

    save: SaveId
    world_size: int  # number of ranks that saved it
    kinds: dict[tuple[int, int], int] = field(default_factory=dict)  # the best kind, by rank and node
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
        return tuple(rank for rank, node in self.best.items() if self.kinds[rank, node] == DISK)


def rows_of(memory_store: MemoryStore, node_disk: NodeDisk) -> list[tuple[SaveId, int, int, int]]:
    """The shards on this node: save, world size, rank and kind."""
    in_memory = [
        (record.save, record.world_size, record.rank, OWN if memory_names.kind_of(name) == memory_names.OWN else COPY)
        for name, record in memory_store.shards().items()
    ]
    return [*in_memory, *((*row, DISK) for row in node_disk.rows())]


def held_saves(
    shards: Iterable[Iterable[Row]], preference: Callable[[int, int, int], Any] = lambda rank, node, kind: (kind, node)
) -> list[Held]:
    """Groups shards by save, the newest step first.

    Args:
        shards: the rows of each node, in the order of node ranks.
        preference: the sort key of a holder, from rank, node and kind.
    """
    found: dict[SaveId, Held] = {}
    for node, rows in enumerate(shards):
        for save_json, world_size, rank, kind in rows:
            save = SaveId.from_json(save_json)
            kinds = found.setdefault(save, Held(save=save, world_size=world_size)).kinds
            kinds[rank, node] = min(kind, kinds.get((rank, node), kind))
    for held in found.values():
        for (rank, node), _ in sorted(held.kinds.items(), key=lambda item: preference(item[0][0], item[0][1], item[1])):
            held.holders.setdefault(rank, []).append(node)
    return sorted(found.values(), key=lambda held: (held.save.step, held.save.attempt), reverse=True)


def whole_in_place(shards: Iterable[Iterable[Row]], place: Place) -> list[SaveId]:
    """The saves of which every rank has its own shard on its own node, this attempt's first, newest first."""
    in_place = (
        [row for row in rows if row[3] == OWN and row[1] == place.world_size and row[2] // place.ranks_per_node == node]
        for node, rows in enumerate(shards)
    )
    whole = [held.save for held in held_saves(in_place) if not held.lost]
    return sorted(whole, key=lambda save: (save.attempt, save.line.number, save.step), reverse=True)
