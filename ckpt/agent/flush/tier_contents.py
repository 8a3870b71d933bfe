"""The steps in the lower tiers when agents start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckpt.agent.context import Context
from ckpt.agent.shards.held import ShardKind, held_saves
from ckpt.agent.storage_calls import in_time
from ckpt.errors import CheckpointError
from ckpt.format.line import Line
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import committed, last_commit_s
from ckpt.tiers.tier import Tier


@dataclass(frozen=True, kw_only=True)
class TierContents:
    """The committed saves of the lower tiers.

    Attributes:
        held: the saves, by tier that could be read.
        lost: steps of shared tiers that cannot be restored now: damaged, of another format, or not read.
        lines: lines that begin after some step and have no save yet.
        last_s: the time of the newest commit in seconds since the epoch, by tier that has any.
        unreadable: a message for each shared tier that could not be read.
    """

    held: dict[str, list[SaveId]]
    last_s: dict[str, float]
    unreadable: tuple[str, ...]
    lost: tuple[LostStep, ...] = ()
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LostStep:
    """A step that a tier has, or may have, and that cannot be restored now.

    `line` is the id of its line; `name` that of its directory.
    """

    step: int
    line: str
    name: str
    reason: str


async def read_tier_contents(context: Context, inventories: Sequence[dict[str, Any]], timeout_s: float) -> TierContents:
    """Reads the shared tiers concurrently. The nodes' own disks are in the inventories.

    Args:
        timeout_s: for each tier. A slower tier counts as unreadable.
    """
    disks = ([one for one in inventory["shards"] if one.kind is ShardKind.DISK] for inventory in inventories)
    local = [held.save for held in held_saves(disks) if not held.lost]
    shared = {name: tier for name, tier in context.tiers.items() if not tier.node_local}
    answers = await asyncio.gather(*(_steps(context, name, tier, timeout_s) for name, tier in shared.items()))
    found = dict(zip(shared, answers, strict=True))
    read = {name: answer for name, answer in found.items() if not isinstance(answer, str)}
    of_nodes = min(inventory["nvme_last_s"] for inventory in inventories)
    held = {name: one.saves for name, one in read.items()}
    held |= {name: local for name, tier in context.tiers.items() if tier.node_local}
    last_s = {name: one.last_s for name, one in read.items() if one.last_s}
    last_s |= {name: of_nodes for name, tier in context.tiers.items() if tier.node_local and of_nodes}
    return TierContents(
        held=held,
        last_s=last_s,
        unreadable=tuple(answer for answer in answers if isinstance(answer, str)),
        lost=tuple(lost for one in read.values() for lost in one.lost),
        lines=tuple(line for one in read.values() for line in one.lines),
    )


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """Those of one shared tier."""

    saves: list[SaveId]
    lost: list[LostStep]
    lines: list[Line]
    last_s: float


async def _steps(context: Context, name: str, tier: Tier, timeout_s: float) -> _Contents | str:
    try:
        return await in_time(timeout_s, _contents, tier)
    except (CheckpointError, OSError) as error:
        context.listener.problem(f"{name} tier cannot be read", str(error))
        return f"the {name} tier cannot be read: {error}"


def _contents(tier: Tier) -> _Contents:
    tier.check()
    entries = list(tier.catalog())
    lost = [
        LostStep(step=entry.step, line=entry.line_id, name=entry.name, reason=f"{tier.where}: {entry.reason}")
        for entry in entries
        if entry.is_lost
    ]
    return _Contents(saves=committed(entries, tier.where), lost=lost, lines=tier.lines(), last_s=last_commit_s(entries))
