"""What nodes and lower tiers hold as agents come up, all taken together."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt.agent.context import Context
from ckpt.agent.storage_calls import in_time
from ckpt.config import Place
from ckpt.errors import CheckpointError
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import committed, last_commit_s
from ckpt.tiers.tier import Tier


@dataclass(frozen=True, kw_only=True)
class TierContents:
    """The committed saves of the lower tiers.

    Attributes:
        held: by tier that could be read.
        last_s: when the newest of them was committed, by tier that has any, in seconds since the epoch.
        unreadable: which of those that all nodes see could not be, and why.
    """

    held: dict[str, list[SaveId]]
    last_s: dict[str, float]
    unreadable: tuple[str, ...]


async def read_tier_contents(context: Context, inventories: Sequence[dict[str, Any]], timeout_s: float) -> TierContents:
    """Asks the tiers that all nodes see, all at once; of the nodes' own disks the inventories tell.

    Args:
        context: node rank 0's.
        inventories: the nodes' answers to "inventory".
        timeout_s: for each tier; one that is slower counts as unreadable.
    """
    local = _whole(row for inventory in inventories for row in inventory["nvme"])
    shared = {name: tier for name, tier in context.tiers.items() if not tier.node_local}
    answers = await asyncio.gather(*(_steps(context, name, tier, timeout_s) for name, tier in shared.items()))
    found = dict(zip(shared, answers, strict=True))
    read = {name: answer for name, answer in found.items() if not isinstance(answer, str)}
    of_nodes = [inventory["nvme_last_s"] for inventory in inventories]
    read |= {name: (local, min(of_nodes)) for name, tier in context.tiers.items() if tier.node_local}
    held = {name: saves for name, (saves, _) in read.items()}
    last_s = {name: last_s for name, (_, last_s) in read.items() if last_s}
    return TierContents(
        held=held, last_s=last_s, unreadable=tuple(answer for answer in answers if isinstance(answer, str))
    )


def whole_in_place(shards: Sequence[Sequence[Sequence[Any]]], place: Place) -> list[SaveId]:
    """The saves of which every rank has its own shard on its own node, this attempt's first, newest first.

    Args:
        shards: by node, what it holds: save, world size, rank, whether it is the rank's own.
        place: one of the nodes.
    """
    held: dict[SaveId, set[int]] = defaultdict(set)
    for node, rows in enumerate(shards):
        for save_json, world_size, rank, is_own in rows:
            if is_own and world_size == place.world_size and rank // place.ranks_per_node == node:
                held[SaveId.from_json(save_json)].add(rank)
    whole = [save for save, ranks in held.items() if len(ranks) == place.world_size]
    return sorted(whole, key=lambda save: (save.attempt, save.step), reverse=True)


def whole_anywhere(shards: Sequence[Sequence[Sequence[Any]]]) -> list[tuple[SaveId, int, dict[int, list[int]]]]:
    """The saves of which every rank has its shard on some node, the newest step first.

    Args:
        shards: by node, what it holds: save, world size, rank, whether it is the rank's own.

    Returns:
        Each with its world size and, by rank, the nodes that hold its shard: its own before copies.
    """
    held: dict[tuple[SaveId, int], dict[int, list[tuple[bool, int]]]] = defaultdict(lambda: defaultdict(list))
    for node, rows in enumerate(shards):
        for save_json, world_size, rank, is_own in rows:
            held[SaveId.from_json(save_json), world_size][rank].append((not is_own, node))
    found = [
        (save, world_size, {rank: list(dict.fromkeys(node for _, node in sorted(ranks[rank]))) for rank in ranks})
        for (save, world_size), ranks in held.items()
        if len(ranks) == world_size
    ]
    return sorted(found, key=lambda one: (one[0].step, one[0].attempt), reverse=True)


def _whole(rows: Iterable[Sequence[Any]]) -> list[SaveId]:
    """The saves of which every rank's shard lies on some node's disk: nodes may have changed places since.

    Args:
        rows: save, world size, rank.
    """
    held: dict[tuple[SaveId, int], set[int]] = defaultdict(set)
    for save_json, world_size, rank in rows:
        held[SaveId.from_json(save_json), world_size].add(rank)
    return [save for (save, world_size), ranks in held.items() if len(ranks) == world_size]


async def _steps(context: Context, name: str, tier: Tier, timeout_s: float) -> tuple[list[SaveId], float] | str:
    try:
        return await in_time(timeout_s, _own_steps, tier)
    except (CheckpointError, OSError) as error:
        context.listener.problem(f"{name} tier cannot be read", str(error))
        return f"the {name} tier cannot be read: {error}"


def _own_steps(tier: Tier) -> tuple[list[SaveId], float]:
    tier.check()
    entries = list(tier.catalog())
    return committed(entries, tier.where), last_commit_s(entries)
