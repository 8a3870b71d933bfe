"""Plans for steps that a script chooses, besides the one that the agents restore when they start."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.rpc.messages import serves
from ckpt.agent.rpc.peers import PeerError
from ckpt.agent.saves import NodeSaves
from ckpt.agent.shards.held import held_saves
from ckpt.agent.shards.plan import Plan
from ckpt.agent.storage_calls import in_time
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.lasting import best_first
from ckpt.format.line import FIRST, Line
from ckpt.format.shard_record import SaveId
from ckpt.tiers.retention import ScoredSave
from ckpt.tiers.tier import Tier


class Chosen(Part):
    """One node's part. The agent of node rank 0 makes the plans, one at a time for each step.

    Nothing is rebuilt from redundancy. If the nodes' memory and disks do not have the whole step, it comes from a
    shared tier. Workers verify what they read.
    """

    def __init__(self, context: Context, saves: NodeSaves) -> None:
        super().__init__(context)
        self._saves = saves
        self._best: tuple[SaveId | None, asyncio.Future[int]] | None = None  # by the newest save
        self._plans: dict[int, Plan] = {}
        self._looking: dict[int, asyncio.Task[Plan]] = {}

    def newest_line(self) -> Line:
        """The line that this attempt continues, or has begun."""
        newest = self._saves.newest
        return newest.line if newest else FIRST

    async def plan(self, step: int) -> Plan:
        """Requests a plan for a step.

        Raises:
            AgentError: no tier has the whole step. The message has the reason for each tier.
        """
        try:
            answer = await self._peers.call(0, "find_chosen", step=step)
        except PeerError as error:
            raise AgentError(str(error)) from None
        plan: Plan = answer["plan"]
        self._plans[step] = plan
        return plan

    def find(self, step: int) -> Plan | None:
        """The plan from an earlier call of `plan`; None if there is none."""
        return self._plans.get(step)

    def known(self, step: int) -> Plan:
        """The plan from an earlier call of `plan`. Raises AgentError if there is none."""
        if step not in self._plans:
            raise AgentError(f"step {step} is not the one that the agents restore, and was not chosen before")
        return self._plans[step]

    async def best(self) -> int:
        """The best step by the metric of `keep_best`, which all ranks get. Raises AgentError if there is none."""
        try:
            return int((await self._peers.call(0, "find_best"))["step"])
        except PeerError as error:
            raise AgentError(str(error)) from None

    @serves("find_best")
    async def _on_find_best(self, source: int) -> dict[str, Any]:
        """Looks once until the next commit. No step commits before all ranks have asked, as each saves after that."""
        newest = self._saves.newest
        if self._best is None or self._best[0] != newest:
            self._best = newest, asyncio.ensure_future(self._look_for_best())
        try:
            return {"step": await asyncio.shield(self._best[1])}
        except (CheckpointError, OSError):
            self._best = None  # a script may ask again, once a tier can be read
            raise

    async def _look_for_best(self) -> int:
        best, line = self._config.best, self.newest_line()
        if best is None:
            raise AgentError("no tier has keep_best, which names the metric; add it to the `checkpoint` section")
        scored = [
            ScoredSave(save=record.save, metrics=record.metrics) for record in self._memory_store.shards().values()
        ]
        scored += [ScoredSave(save=record.save, metrics=record.metrics) for record in self._node_disk.records()]
        for tier in self._context.tiers.values():
            if not tier.node_local:
                scored += await in_time(self._deadlines.verify_s, _scored_in, tier)
        for one in best_first(best, {one for one in scored if line.has(one.line.id, one.step)}):
            with contextlib.suppress(AgentError):  # it is not complete anywhere
                return (await self._look(one.step)).step or 0
        raise AgentError(
            f"no step that can be restored has the metric {best.metric}; give it to save(..., metrics=...)"
        )

    @serves("find_chosen")
    async def _on_find_chosen(self, source: int, step: int) -> dict[str, Any]:
        if step not in self._looking:
            task = self._looking[step] = asyncio.ensure_future(self._look(step))
            task.add_done_callback(lambda _: self._looking.pop(step, None))
        return {"plan": await asyncio.shield(self._looking[step])}

    @serves("holds")
    async def _on_holds(self, source: int, step: int) -> dict[str, Any]:
        return {"shards": [one for one in self._saves.held() if one.save.step == step]}

    async def _look(self, step: int) -> Plan:
        """The best plan for a step: of the newest line's descent, then of this run's newest attempt."""
        answers = await self._peers.call_all("holds", step=step)
        found = [
            Plan(
                save=held.save, world_size=held.world_size, tier="nvme" if held.on_disks else "memory",
                nvme=held.on_disks, holders=held.holders,
            )
            for held in held_saves(answer["shards"] for answer in answers)
            if not held.lost
        ]  # fmt: skip
        reasons = ["no node's memory or disk has all of it"]
        for name, tier in self._context.tiers.items():
            if tier.node_local:
                continue
            try:
                stored = await in_time(self._deadlines.verify_s, _of_tier, name, tier, step)
            except (CheckpointError, OSError) as error:
                reasons.append(f"the {name} tier: {error}")
            else:
                found += stored
                reasons += [] if stored else [f"it is not in {tier.where}"]
        run_id = self._place.run_id
        if not found:
            raise AgentError(f"step {step} cannot be had: {'; '.join(reasons)}")
        newest = self.newest_line()

        def rank(plan: Plan) -> tuple[Any, ...]:
            line, is_ours = plan.line, plan.save is not None and plan.save.run_id == run_id
            return newest.has(line.id, step), line.number, is_ours, plan.attempt or 0

        return max(found, key=rank)


def _scored_in(tier: Tier) -> list[ScoredSave]:
    """Raises OSError if a step cannot be read: it may be the best one."""
    entries = list(tier.catalog())
    for entry in entries:
        if entry.unread:
            raise entry.unread
    return [ScoredSave(save=entry.save, metrics=entry.metrics) for entry in entries if entry.save]


def _of_tier(name: str, tier: Tier, step: int) -> list[Plan]:
    """A plan for each save of the step in a shared tier. Raises CheckpointError or OSError."""
    found = []
    for entry in tier.catalog():
        if entry.step == step and entry.unread:
            raise entry.unread
        if entry.step == step and entry.manifest:
            save, world_size = entry.manifest.save, len(entry.manifest.shards)
            found.append(Plan(save=save, world_size=world_size, tier=name, stored=(name,)))
        if entry.step < step:
            break
    return found
