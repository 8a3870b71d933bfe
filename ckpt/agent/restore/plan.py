"""What the agents of an attempt agree to restore, as every node knows it, and where its shards lie then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ckpt.format.shard_record import SaveId


@dataclass(frozen=True, kw_only=True)
class Placement:
    """In which node's memory each shard of a save lies, as redundancy is made of it."""

    world_size: int  # ranks that saved it
    nodes: Mapping[int, int]  # by rank; those that no memory holds are left out

    def to_json(self) -> list[Any]:
        return [self.world_size, list(self.nodes.items())]

    @classmethod
    def from_json(cls, value: list[Any]) -> Placement:
        world_size, nodes = value
        return cls(world_size=world_size, nodes=dict(nodes))

    def of(self, members: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """The ranks whose shards lie on each of some nodes, in order."""
        found: dict[int, list[int]] = {member: [] for member in members}
        for rank, node in sorted(self.nodes.items()):
            if node in found:
                found[node].append(rank)
        return tuple(map(tuple, found.values()))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One save, and where each of its shards can be had. Without a save there is nothing to restore."""

    save: SaveId | None = None
    world_size: int = 0  # ranks that saved it
    tier: str = "none"  # the lowest that is needed: "memory", "nvme", "shared" or "s3"
    holders: dict[int, list[int]] = field(default_factory=dict)  # by rank, the nodes that hold its shard, best first
    rebuilt: tuple[int, ...] = ()  # ranks that were lost, and made again from parity
    nvme: tuple[int, ...] = ()  # ranks of which the best holder has the shard on its disk only
    stored: tuple[str, ...] = ()  # the tiers that all nodes see and that hold the save; first the one verified
    leaving: tuple[int, ...] = ()  # ranks that only holders have in memory; their `Context.reader` takes them over
    fetched: tuple[int, ...] = ()  # ranks whose shard came from there into the memory of their `Context.reader`
    skipped: tuple[tuple[int, str], ...] = ()  # newer steps passed over, and why

    def to_json(self) -> dict[str, Any]:
        save = self.save.to_json() if self.save else None
        return {**vars(self), "save": save, "holders": list(self.holders.items())}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        fields: dict[str, Any] = {
            n: tuple(each) if isinstance(each, (list, tuple)) else each for n, each in value.items()
        }
        fields["save"] = SaveId.from_json(value["save"]) if value["save"] else None
        fields["holders"] = {rank: list(nodes) for rank, nodes in value["holders"]}
        return cls(**{**fields, "skipped": tuple(map(tuple, value["skipped"]))})

    @property
    def step(self) -> int | None:
        """The step to go on from; None where there is nothing to restore."""
        return self.save.step if self.save else None

    @property
    def placement(self) -> Placement:
        """Where redundancy for it is made of: of each shard, what one node has in its memory, and keeps."""
        away = {*self.nvme, *self.leaving}
        nodes = {rank: nodes[0] for rank, nodes in self.holders.items() if nodes and rank not in away}
        return Placement(world_size=self.world_size, nodes=nodes)

    def taken_over(self, taken: Mapping[int, int]) -> Plan:
        """The plan after nodes that train have taken shards over from holders.

        Args:
            taken: by rank, the node that has the shard in its memory now.
        """
        holders = {rank: [taken[rank], *nodes] if rank in taken else nodes for rank, nodes in self.holders.items()}
        left = tuple(rank for rank in self.leaving if rank not in taken)
        nvme = tuple(rank for rank in self.nvme if rank not in taken)
        return replace(self, holders=holders, leaving=left, nvme=nvme)

    @property
    def attempt(self) -> int | None:
        """The attempt that saved it."""
        return self.save.attempt if self.save else None

    def skipped_json(self) -> list[dict[str, Any]]:
        """As workers and monitors are told."""
        return [{"step": step, "reason": reason} for step, reason in self.skipped]
