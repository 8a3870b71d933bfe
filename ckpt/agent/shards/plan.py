"""The plan on which the agents of an attempt agree: the step to restore, and the locations of its shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ckpt.format.line import FIRST, Line
from ckpt.format.shard_record import SaveId


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The node whose memory has each shard of a save, as a source for redundancy."""

    world_size: int  # number of ranks that saved it
    nodes: Mapping[int, int]  # by rank, without ranks that are in no memory

    def to_json(self) -> dict[str, Any]:
        return {"world_size": self.world_size, "nodes": list(self.nodes.items())}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Placement:
        return cls(world_size=value["world_size"], nodes=dict(value["nodes"]))

    def of(self, members: Iterable[int]) -> tuple[tuple[int, ...], ...]:
        """The ranks whose shards are on each of some nodes, in order."""
        found: dict[int, list[int]] = {member: [] for member in members}
        for rank, node in sorted(self.nodes.items()):
            if node in found:
                found[node].append(rank)
        return tuple(map(tuple, found.values()))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One save, and the sources of its shards. Without a save there is nothing to restore."""

    save: SaveId | None = None
    world_size: int = 0  # number of ranks that saved it
    tier: str = "none"  # the lowest tier needed: "memory", "nvme", "shared" or "s3"
    holders: dict[int, list[int]] = field(default_factory=dict)  # by rank, the nodes that have its shard, best first
    rebuilt: tuple[int, ...] = ()  # lost ranks that were rebuilt from parity
    nvme: tuple[int, ...] = ()  # ranks whose best holder has the shard only on its disk
    stored: tuple[str, ...] = ()  # the shared tiers that have the save, the verified one first
    leaving: tuple[int, ...] = ()  # ranks that only holders have in memory; their `Context.reader` takes them over
    fetched: tuple[int, ...] = ()  # ranks whose shard was read from there into the memory of their `Context.reader`
    skipped: tuple[tuple[int, str], ...] = ()  # newer steps that were passed over, with the reasons
    newest: int | None = None  # the newest step of the namespace, whether it can be restored or not
    is_head: bool = True  # whether its line has no newer step, and none may come to light later
    left: tuple[str, ...] = ()  # what stays aside, in words: steps of other lines, and why
    notice: str = ""  # what the user should know of the folder, in words
    next_number: int = 1  # of the next line that begins
    began_s: float = 0.0  # CLOCK_REALTIME: when it begins

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
    def line(self) -> Line:
        """The line of its save; FIRST if there is none."""
        return self.save.line if self.save else FIRST

    @property
    def step(self) -> int | None:
        """The step from which to continue; None if there is nothing to restore."""
        return self.save.step if self.save else None

    @property
    def placement(self) -> Placement:
        """The sources of its redundancy: for each shard, one node that has it in memory and keeps it."""
        away = {*self.nvme, *self.leaving}
        nodes = {rank: nodes[0] for rank, nodes in self.holders.items() if nodes and rank not in away}
        return Placement(world_size=self.world_size, nodes=nodes)

    def is_in_place(self, home: Callable[[int], int]) -> bool:
        """Whether all shards are in memory, each on its rank's own node (`home` of the rank), without a rebuild."""
        in_memory = self.tier == "memory" and not self.rebuilt
        return in_memory and all(home(rank) in nodes for rank, nodes in self.holders.items())

    def taken_over(self, taken: Mapping[int, int]) -> Plan:
        """The plan after training nodes have taken over shards from holders.

        Args:
            taken: by rank, the node that now has the shard in its memory.
        """
        holders = {rank: [taken[rank], *nodes] if rank in taken else nodes for rank, nodes in self.holders.items()}
        left = tuple(rank for rank in self.leaving if rank not in taken)
        nvme = tuple(rank for rank in self.nvme if rank not in taken)
        return replace(self, holders=holders, leaving=left, nvme=nvme)

    @property
    def attempt(self) -> int | None:
        return self.save.attempt if self.save else None

    def skipped_json(self) -> list[dict[str, Any]]:
        """The skipped steps in the form for workers and monitors."""
        return [{"step": step, "reason": reason} for step, reason in self.skipped]
