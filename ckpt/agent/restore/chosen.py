"""Plans for steps that a script chooses, besides the one that the agents restore when they start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.restore.plan import Plan
from ckpt.agent.rpc.peers import PeerError
from ckpt.agent.shards.held import held_saves, rows_of
from ckpt.agent.storage_calls import in_time
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.line import Line
from ckpt.tiers.tier import Tier


class Chosen(Part):
    """One node's part. The agent of node rank 0 makes the plans, one at a time for each step.

    Nothing is rebuilt from redundancy. If the nodes' memory and disks do not have the whole step, it comes from a
    shared tier. Workers verify what they read.
    """

    def __init__(self, context: Context, newest_line: Callable[[], Line]) -> None:
        """
        Args:
            newest_line: the line that this attempt continues, or has begun.
        """
        super().__init__(context)
        self._newest_line = newest_line
        self._plans: dict[int, Plan] = {}
        self._looking: dict[int, asyncio.Task[Plan]] = {}

    async def plan(self, step: int) -> Plan:
        """Requests a plan for a step.

        Raises:
            AgentError: no tier has the whole step. The message has the reason for each tier.
        """
        try:
            answer = await self._peers.call(0, "find_chosen", step=step)
        except PeerError as error:
            raise AgentError(str(error)) from None
        plan = self._plans[step] = Plan.from_json(answer["plan"])
        return plan

    def find(self, step: int) -> Plan | None:
        """The plan from an earlier call of `plan`; None if there is none."""
        return self._plans.get(step)

    def known(self, step: int) -> Plan:
        """The plan from an earlier call of `plan`. Raises AgentError if there is none."""
        if step not in self._plans:
            raise AgentError(f"step {step} is not the one that the agents restore, and was not chosen before")
        return self._plans[step]

    async def _on_find_chosen(self, source: int, step: int) -> dict[str, Any]:
        if step not in self._looking:
            task = self._looking[step] = asyncio.ensure_future(self._look(step))
            task.add_done_callback(lambda _: self._looking.pop(step, None))
        return {"plan": (await asyncio.shield(self._looking[step])).to_json()}

    async def _on_holds(self, source: int, step: int) -> dict[str, Any]:
        rows = rows_of(self._memory_store, self._node_disk)
        return {"shards": [[row[0].to_json(), *row[1:]] for row in rows if row[0].step == step]}

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
        newest = self._newest_line()

        def rank(plan: Plan) -> tuple[Any, ...]:
            line, is_ours = plan.line, plan.save is not None and plan.save.run_id == run_id
            return newest.has(line.id, step), line.number, is_ours, plan.attempt or 0

        return max(found, key=rank)


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
