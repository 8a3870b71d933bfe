"""Plans for a step that a script chooses, beside the one that the agents restore at their start."""

from __future__ import annotations

import asyncio
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.flush.tier_contents import whole
from ckpt.agent.restore.plan import Plan
from ckpt.agent.rpc.peers import PeerError
from ckpt.agent.storage_calls import in_time
from ckpt.errors import AgentError, CheckpointError
from ckpt.tiers.tier import Tier


class Chosen(Part):
    """One node's part; the agent of node rank 0 looks for all, once for each step and each round of loads.

    Nothing is made again from redundancy: what a step lacks in the nodes' memory and on their disks comes from a tier
    that all nodes see, or the step cannot be had. Workers verify what they read.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._plans: dict[int, Plan] = {}
        self._looking: dict[int, asyncio.Task[Plan]] = {}

    async def plan(self, step: int) -> Plan:
        """Where the shards of a step are.

        Raises:
            AgentError: no tier has the whole step; says what each has.
        """
        try:
            answer = await self._peers.call(0, "find_chosen", step=step)
        except PeerError as error:
            raise AgentError(str(error)) from None
        plan = self._plans[step] = Plan.from_json(answer["plan"])
        return plan

    def known(self, step: int) -> Plan:
        """The plan that `plan` has found; raises AgentError where it has found none."""
        if step not in self._plans:
            raise AgentError(f"step {step} is not the one that the agents restore, and was not chosen before")
        return self._plans[step]

    async def _on_find_chosen(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        step = int(message["step"])
        if step not in self._looking:
            task = self._looking[step] = asyncio.ensure_future(self._look(step))
            task.add_done_callback(lambda _: self._looking.pop(step, None))
        return {"plan": (await asyncio.shield(self._looking[step])).to_json()}

    async def _on_holds(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """What this node holds of a step: rows of save, world size, rank, and whether in memory."""
        step, node_disk = message["step"], self._node_disk
        held = [(r.save, r.world_size, r.rank, True) for r in self._memory_store.shards().values()]
        held += [(*row, False) for row in node_disk.rows()]
        return {"shards": [[row[0].to_json(), *row[1:]] for row in held if row[0].step == step]}

    async def _look(self, step: int) -> Plan:
        """The best plan for a step: this run's newest attempt first, then what is nearest."""
        answers = await self._peers.call_all("holds", step=step)
        found = [
            Plan(
                save=one.save, world_size=one.world_size, tier="nvme" if one.second_best else "memory",
                nvme=one.second_best, holders=one.holders,
            )
            for one in whole(answer["shards"] for answer in answers)
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
        return max(found, key=lambda plan: (plan.save is not None and plan.save.run_id == run_id, plan.attempt or 0))


def _of_tier(name: str, tier: Tier, step: int) -> list[Plan]:
    """Of each save of the step in a tier that all nodes see; raises CheckpointError or OSError."""
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
