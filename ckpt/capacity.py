"""The memory, disk and network that a `checkpoint:` section needs, and the losses it survives, before a job runs.

This module has no formulas of its own: sets, schemes, parity and files come from the code that agents and tiers use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

from ckpt.config import CheckpointConfig, Place
from ckpt.redundancy import Scheme, scheme_of, sets_over
from ckpt.redundancy.sets import Members
from ckpt.redundancy.stripes import Stripes
from ckpt.sections import TierSection
from ckpt.tiers.tier import padded

_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Rates:
    """GB (10^9 bytes) per second. None: not known."""

    wire: float | None = None  # of each node, to other nodes
    nvme: float | None = None  # of each node's disk
    shared: float | None = None  # of the shared directory, all nodes together
    s3: float | None = None  # of the bucket, all nodes together


_UNKNOWN = Rates()


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of memory on the fullest node, once every slot has been used."""

    slots: int  # of each rank
    own_bytes: int
    redundancy_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.own_bytes + self.redundancy_bytes


@dataclass(frozen=True, kw_only=True)
class Losses:
    """The number of nodes that may be lost at once without a restore from a lower tier."""

    set_sizes: tuple[int, ...]  # distinct sizes of the redundancy sets, largest first
    sets: int
    any_nodes: int  # of the whole job, whichever they are
    most_nodes: int  # if they are in different sets as far as possible
    any_switch: bool | None  # None: the switches are not known


@dataclass(frozen=True, kw_only=True)
class FlushEstimate:
    """One tier below memory."""

    tier: str
    every_steps: int | Literal["auto"]
    keep: int
    node_bytes: int  # written by each node for one step
    held_bytes: int  # by the whole tier while the newest step is written; NVMe: on each node
    seconds: float | None  # of one flush; None: the rate is not known


@dataclass(frozen=True, kw_only=True)
class CapacityPlan:
    """The whole plan of a job."""

    nodes: int
    ranks_per_node: int
    shard_bytes: int
    scheme: str
    memory: Memory
    losses: Losses
    wire_bytes: int  # sent by the busiest node for one save
    protect_s: float | None
    flushes: tuple[FlushEstimate, ...]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "memory": {**asdict(self.memory), "total_bytes": self.memory.total_bytes}}


def make_plan(
    config: CheckpointConfig, *, nodes: int, ranks_per_node: int, shard_bytes: int, rates: Rates = _UNKNOWN,
    domains: Sequence[str] = (),
) -> CapacityPlan:  # fmt: skip
    """Computes the plan of a job.

    Args:
        domains: each node's switch, in the order of the nodes; empty if it is not known.
    """
    scheme = scheme_of(config.redundancy)
    sets = sets_over(nodes, config.redundancy, domains)
    stream_bytes = ranks_per_node * shard_bytes
    stored, sent = zip(*(_redundancy(scheme, members, stream_bytes) for members in sets), strict=True)
    wire_bytes = max(sent)
    file_bytes = (ranks_per_node - 1) * padded(shard_bytes) + shard_bytes
    return CapacityPlan(
        nodes=nodes, ranks_per_node=ranks_per_node, shard_bytes=shard_bytes, scheme=scheme.name,
        memory=Memory(
            slots=config.slots, own_bytes=config.slots * stream_bytes, redundancy_bytes=config.slots * max(stored)
        ),
        losses=_losses(scheme, sets, domains),
        wire_bytes=wire_bytes,
        protect_s=wire_bytes / _GB / rates.wire if rates.wire else None,
        flushes=tuple(_flush(name, tier, nodes, file_bytes, rates) for name, tier in config.lower.items()),
    )  # fmt: skip


def node_memory(config: CheckpointConfig, place: Place, state_bytes: int) -> tuple[int, Memory]:
    """The bytes of each rank's shard of a state, and the memory that all saves of it take on a node."""
    each = -(-state_bytes // place.world_size)
    plan = make_plan(config, nodes=len(place.nodes), ranks_per_node=place.ranks_per_node, shard_bytes=each)
    return each, plan.memory


def survives(scheme: Scheme, sets: Sequence[Members], lost: Collection[int]) -> bool:
    """Whether every shard survives the loss of these nodes, in some node's memory or as parity."""
    return all(_set_survives(scheme, members, set(lost) & set(members)) for members in sets)


def _set_survives(scheme: Scheme, members: Members, lost: set[int]) -> bool:
    if not lost or len(lost) <= scheme.parity(members):
        return True
    holders: dict[int, set[int]] = defaultdict(set)
    for node in set(members) - lost:
        for source in scheme.sources(node, members):
            holders[source].add(node)
    return all(holders[node] for node in lost)


def _losses(scheme: Scheme, sets: Sequence[Members], domains: Sequence[str]) -> Losses:
    each = [scheme.survives(members) for members in sets]
    switches: dict[str, set[int]] = defaultdict(set)
    for node, switch in enumerate(domains):
        switches[switch].add(node)
    return Losses(
        set_sizes=tuple(sorted({len(members) for members in sets}, reverse=True)),
        sets=len(sets),
        any_nodes=min(each),
        most_nodes=sum(each),
        any_switch=all(survives(scheme, sets, lost) for lost in switches.values()) if domains else None,
    )


def _redundancy(scheme: Scheme, members: Members, stream_bytes: int) -> tuple[int, int]:
    """For one save: the bytes that a member stores in addition to its own shards, and those that it sends, at most."""
    copies = max(len(scheme.sources(node, members)) for node in members) * stream_bytes
    stored, sent = _parity(len(members), scheme.parity(members), stream_bytes)
    return copies + stored, copies + sent


@lru_cache  # sets have one size or two
def _parity(members: int, parity: int, stream_bytes: int) -> tuple[int, int]:
    """The bytes of a member's parity, and those that it sends: its stream once, and the rows that others store."""
    if not parity or not stream_bytes:
        return 0, 0
    stripes = Stripes([stream_bytes] * members, parity)
    sent: dict[int, int] = defaultdict(int)
    for member in range(members):
        for term in stripes.encode(member, 0).terms:
            sent[term.member] += term.nbytes
        sent[member] += sum(stripes.encode((member + row) % members, row).nbytes for row in range(1, parity))
    return max(map(stripes.parity_bytes, range(members))), max(sent.values())


def _flush(name: str, tier: TierSection, nodes: int, file_bytes: int, rates: Rates) -> FlushEstimate:
    """The estimate for one tier.

    A node's disk has its own rate and limit; a shared place has one rate for all nodes.
    """
    local = name == "nvme"
    known = {"nvme": rates.nvme, "shared": rates.shared, "s3": rates.s3}[name]
    times = [file_bytes * (1 if local else nodes) / _GB / known] if known else []
    times += [file_bytes / tier.rate_limit_bytes_s] if tier.rate_limit_bytes_s else []
    return FlushEstimate(
        tier=name, every_steps=tier.every_steps, keep=tier.keep, node_bytes=file_bytes,
        held_bytes=(tier.keep + 1) * file_bytes * (1 if local else nodes), seconds=max(times, default=None),
    )  # fmt: skip
