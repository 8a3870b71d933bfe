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


Row = Sequence[Any]  # save, world size, rank, whether other nodes' are second to it


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A save of which nodes together hold every rank's shard."""

    save: SaveId
    world_size: int
    holders: dict[int, list[int]]  # by rank, the nodes: preferred ones first
    second_best: tuple[int, ...]  # the ranks that no node holds as preferred


async def read_tier_contents(context: Context, inventories: Sequence[dict[str, Any]], timeout_s: float) -> TierContents:
    """Asks the tiers that all nodes see, all at once; of the nodes' own disks the inventories tell.

    Args:
        context: node rank 0's.
        inventories: the nodes' answers to "inventory".
        timeout_s: for each tier; one that is slower counts as unreadable.
    """
    local = [found.save for found in whole([[*row, True] for row in one["nvme"]] for one in inventories)]
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


def whole_in_place(shards: Sequence[Sequence[Row]], place: Place) -> list[SaveId]:
    """The saves of which every rank has its own shard on its own node, this attempt's first, newest first.

    Args:
        shards: by node, what it holds, its own shards preferred.
        place: one of the nodes.
    """
    in_place = (
        [row for row in rows if row[3] and row[1] == place.world_size and row[2] // place.ranks_per_node == node]
        for node, rows in enumerate(shards)
    )
    return sorted((found.save for found in whole(in_place)), key=lambda save: (save.attempt, save.step), reverse=True)


def whole(shards: Iterable[Iterable[Row]]) -> list[Whole]:
    """The saves of which every rank has its shard on some node, the newest step first.

    Args:
        shards: by node, what it holds.
    """
    held: dict[tuple[SaveId, int], dict[int, list[tuple[bool, int]]]] = defaultdict(lambda: defaultdict(list))
    for node, rows in enumerate(shards):
        for save_json, world_size, rank, is_preferred in rows:
            held[SaveId.from_json(save_json), world_size][rank].append((not is_preferred, node))
    found = [
        Whole(
            save=save, world_size=world_size, second_best=tuple(rank for rank, rows in ranks.items() if min(rows)[0]),
            holders={rank: list(dict.fromkeys(node for _, node in sorted(rows))) for rank, rows in ranks.items()},
        )
        for (save, world_size), ranks in held.items()
        if len(ranks) == world_size
    ]  # fmt: skip
    return sorted(found, key=lambda one: (one.save.step, one.save.attempt), reverse=True)


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
