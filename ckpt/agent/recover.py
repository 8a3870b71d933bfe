"""At the start of an attempt node rank 0 leads all agents to one restore: the newest step that is whole and verifies.

inventory -> for each candidate, newest first: verify, rebuild from parity -> plan -> every node takes it up -> its
redundancy anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from typing import Any

from ckpt.agent.context import Context
from ckpt.agent.exchange import save_to_json
from ckpt.agent.peers import PeerError
from ckpt.agent.plan import Plan
from ckpt.agent.rebuilding import Rebuilding
from ckpt.agent.threads import in_thread
from ckpt.errors import AgentError, CheckpointError
from ckpt.record.shard import SaveId

log = logging.getLogger(__name__)


class RecoverLead:
    """What node rank 0 does: finds the newest complete step, and sees to it that it is complete again on every node."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._peers = context.peers
        self._listener = context.listener
        self._deadlines = context.deadlines
        self._rebuilding = Rebuilding(context)
        self._skipped: list[tuple[int, str]] = []

    async def run(self) -> None:
        """Agrees on a plan with all nodes, or tells them all that there is none."""
        try:
            plan = await self._find()
        except Exception as error:
            log.exception("no restore agreed")
            await self._tell("no_restore", reason=str(error))
            return
        same_world = plan.world_size == self._context.place.world_size
        await self._tell("restore", plan=plan.to_json(), same_world=same_world)
        if plan.tier == "memory" and same_world:
            since_s = time.monotonic()
            answers = await self._tell("protect_newest")
            made = sum(answer["made"] for answer in answers)
            log.info("redundancy of the restored step: %d made in %.3f s", made, time.monotonic() - since_s)

    async def _tell(self, op: str, **fields: Any) -> list[dict[str, Any]]:
        try:
            return await self._peers.call_all(op, timeout_s=self._deadlines.restore_s, **fields)
        except PeerError as error:
            self._listener.problem(f"restore: {op} failed on a node", str(error))
            return []

    async def _find(self) -> Plan:
        """The newest save that can be had whole. Raises when it cannot be known whether there is one."""
        memory = await self._in_memory()
        stored, unreadable = await self._in_shared()
        for save in _newest_first(memory, stored, self._context.place.run_id):
            plan = await self._complete(save, memory.get(save), save in stored)
            if plan is not None:
                return plan
        if unreadable:
            raise AgentError(f"no memory holds a complete step, and the shared tier cannot be read: {unreadable}")
        return Plan(skipped=tuple(self._skipped))

    async def _in_memory(self) -> dict[SaveId, tuple[int, dict[int, list[int]]]]:
        """By save: its world size, and by rank the nodes that say they hold it, best first."""
        answers = await self._peers.call_all("inventory", timeout_s=self._deadlines.answer_s)
        found: dict[SaveId, tuple[int, dict[int, dict[int, bool]]]] = {}
        for node, answer in enumerate(answers):
            self._rebuilding.note(node, answer["parity"])
            for save_json, world_size, rank, own in answer["shards"]:
                _, holders = found.setdefault(SaveId.from_json(save_json), (world_size, defaultdict(dict)))
                holders[rank][node] = own or holders[rank].get(node, False)
        return {
            save: (world_size, {rank: self._best_first(rank, nodes) for rank, nodes in holders.items()})
            for save, (world_size, holders) in found.items()
        }

    def _best_first(self, rank: int, nodes: dict[int, bool]) -> list[int]:
        """The node where the rank runs now, then who saved it, then copies."""
        home = self._context.home(rank)
        return sorted(nodes, key=lambda node: (node != home, not nodes[node], node))

    async def _in_shared(self) -> tuple[list[SaveId], str | None]:
        """The committed saves of the shared tier, newest first; or why it cannot be read."""
        if self._context.tier is None:
            return [], None
        try:
            return await asyncio.wait_for(in_thread(self._context.tier.steps), self._deadlines.verify_s), None
        except asyncio.TimeoutError:
            reason = f"no answer within {self._deadlines.verify_s:g} s"
        except (CheckpointError, OSError) as error:
            reason = str(error)
        self._listener.problem("shared tier cannot be read", reason)
        return [], reason

    async def _complete(self, save: SaveId, held: tuple[int, dict[int, list[int]]] | None, stored: bool) -> Plan | None:
        """The plan to restore this save, every byte verified; None (and why, in `skipped`) when that cannot be."""
        world_size, holders = held if held else (0, {})
        await self._keep_verified(save, holders)
        rebuilt, no_rebuild = await self._rebuilding.bring_back(save, world_size, holders)
        lost = [rank for rank in range(world_size) if not holders.get(rank)]
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        reason = f"rank {lost[0]}{more} of {world_size}: no node's memory holds a shard that verifies" if lost else ""
        reason += f"; {no_rebuild}" if lost and no_rebuild else ""
        if stored and self._context.tier is not None and (lost or not held):
            try:
                world_size = (await in_thread(self._context.tier.read_manifest, save)).world_size
                lost = [rank for rank in range(world_size) if not holders.get(rank)]
                await self._verify_shared(save, lost)
                reason = ""
            except (CheckpointError, OSError) as error:
                reason = f"{reason}; shared tier: {error}" if reason else f"shared tier: {error}"
        if reason:
            log.warning("step %d of attempt %d passed over: %s", save.step, save.attempt, reason)
            self._skipped.append((save.step, reason))
            return None
        return Plan(
            save=save, world_size=world_size, tier="shared" if lost else "memory", holders=holders, shared=stored,
            rebuilt=tuple(rebuilt), skipped=tuple(self._skipped),
        )  # fmt: skip

    async def _keep_verified(self, save: SaveId, holders: dict[int, list[int]]) -> None:
        """Lets the best holder of each rank read its bytes; one whose bytes are bad is struck off for the next."""
        pending = sorted(holders)
        while pending:
            asked: dict[int, list[int]] = defaultdict(list)
            for rank in pending:
                asked[holders[rank][0]].append(rank)
            answers = await asyncio.gather(
                *(self._verify("verify", node, save, ranks) for node, ranks in asked.items())
            )
            pending = []
            for node, answer in zip(asked, answers, strict=True):
                for rank in answer["bad"]:
                    name = self._peers.nodes[node]
                    self._listener.problem("shard does not verify", f"rank {rank} in the memory of {name}", save.step)
                    del holders[rank][0]
                    if holders[rank]:
                        pending.append(rank)

    async def _verify_shared(self, save: SaveId, ranks: list[int]) -> None:
        """All nodes together read the shards that only the shared tier holds."""
        nodes = len(self._peers.nodes)
        parts: dict[int, list[int]] = defaultdict(list)
        for rank in ranks:
            parts[self._context.home(rank) % nodes].append(rank)
        await asyncio.gather(*(self._verify("verify_shared", node, save, part) for node, part in parts.items()))

    async def _verify(self, op: str, node: int, save: SaveId, ranks: list[int]) -> dict[str, Any]:
        timeout_s = self._deadlines.verify_s
        return await self._peers.call(node, op, timeout_s=timeout_s, save=save_to_json(save), ranks=ranks)


def _newest_first(memory: dict[SaveId, Any], stored: list[SaveId], run_id: str) -> list[SaveId]:
    """By step; of one step this run's, latest attempt first, then others' in the tier's own order."""
    saves = [*(save for save in memory if save not in stored), *stored]
    ours = {save: save.run_id == run_id for save in saves}
    return sorted(saves, key=lambda save: (-save.step, not ours[save], -save.attempt if ours[save] else 0))
