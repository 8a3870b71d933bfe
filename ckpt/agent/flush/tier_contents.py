"""The steps in the lower tiers when agents start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckpt.agent.context import Context
from ckpt.agent.shards.held import DISK, held_saves
from ckpt.agent.storage_calls import in_time
from ckpt.errors import CheckpointError
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import committed, last_commit_s
from ckpt.tiers.tier import Tier


@dataclass(frozen=True, kw_only=True)
class TierContents:
    """The committed saves of the lower tiers.

    Attributes:
        held: the saves, by tier that could be read.
        last_s: the time of the newest commit in seconds since the epoch, by tier that has any.
        unreadable: a message for each shared tier that could not be read.
    """

    held: dict[str, list[SaveId]]
    last_s: dict[str, float]
    unreadable: tuple[str, ...]


async def read_tier_contents(context: Context, inventories: Sequence[dict[str, Any]], timeout_s: float) -> TierContents:
    """Reads the shared tiers concurrently. The nodes' own disks are in the inventories.

    Args:
        timeout_s: for each tier. A slower tier counts as unreadable.
    """
    disks = ([row for row in inventory["shards"] if row[3] == DISK] for inventory in inventories)
    local = [held.save for held in held_saves(disks) if not held.lost]
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
