"""Node rank 0 leads agents that take the place of lost ones in mid-attempt to where saving goes on.

inventory -> the newest save that lies whole where its ranks run -> verified, its redundancy made anew -> workers are
let in. That save may have been in flight when the old agents went: with all its shards sealed it is as good as any, and
it counts as committed from now on. Workers drop whatever else they had in flight. Where this world has saved nothing
yet, the redundancy of what it has restored is completed. Workers train on meanwhile, and nobody restores.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.flush.leader import FlushLeader
from ckpt.agent.flush.lease import Lease
from ckpt.agent.flush.tier_contents import read_tier_contents, whole, whole_in_place
from ckpt.agent.restore.plan import Placement
from ckpt.format.shard_record import SaveId

log = logging.getLogger(__name__)


class RejoinLeader(Part):
    """Finds the save to go on from, and sees to its redundancy."""

    def __init__(self, context: Context, lease: Lease, flush: FlushLeader) -> None:
        super().__init__(context)
        self._lease = lease
        self._flush = flush

    async def run(self) -> None:
        """Brings all nodes to where saving can go on.

        Raises:
            AgentError: a node failed at it, or another run has the namespace; names it.
        """
        answers = await self._peers.call_all("inventory")
        contents, newest, _ = await asyncio.gather(
            read_tier_contents(self._context, answers, self._deadlines.tier_s), self._find(answers), self._lease.take()
        )
        kept, fields = newest, dict[str, Any](placement=None, alone=[])
        if newest is None or newest.attempt != self._place.attempt:  # this attempt has saved nothing yet
            moved, placement, alone = await self._find_moved(answers)
            if moved is not None and (newest is None or moved.step > newest.step):
                newest, kept, fields = None, moved, {"placement": placement.to_json(), "alone": alone}
        tiers = self._flush.resume(contents, newest)
        fields |= {"save": kept.to_json() if kept else None, "tiers": tiers}
        answers = await self._context.call_training("rejoin_protect", **fields)
        made = sum(answer["made"] for answer in answers)
        boundary = max(answer["boundary"] for answer in answers)
        await self._context.call_training("rejoin_done", boundary=boundary)
        step = f"step {kept.step}, {made} pieces of redundancy made" if kept else "nothing in memory yet"
        log.info("generation %d goes on: %s", self._place.generation, step)
        if newest and tiers:
            await self._flush.lead(newest, sum(answer["pinned_bytes"] for answer in answers), tiers)

    async def _find(self, answers: list[dict[str, Any]]) -> SaveId | None:
        """The newest save whose every shard lies in the memory of the node where its rank runs, and verifies."""
        for save in whole_in_place([answer["shards"] for answer in answers], self._place):
            if await self._verifies(save, {node: list(self._context.ranks(node)) for node in self._context.training}):
                return save
        return None

    async def _find_moved(self, answers: list[dict[str, Any]]) -> tuple[SaveId | None, Placement, list[int]]:
        """What a world of another size has saved and this one has restored, while it has nothing of its own yet.

        Holders may have left, and with them redundancy that had yet to be made.

        Returns:
            The newest save whose every shard lies in the memory of a node that trains, and verifies; where; and the
            ranks whose shard only one node holds.
        """
        for found in whole(answers[node]["shards"] for node in self._context.training):
            ranks: dict[int, list[int]] = defaultdict(list)
            for rank, nodes in found.holders.items():
                ranks[nodes[0]].append(rank)
            if await self._verifies(found.save, ranks):
                best = {rank: nodes[0] for rank, nodes in found.holders.items()}
                alone = [rank for rank, nodes in found.holders.items() if len(nodes) == 1]
                return found.save, Placement(world_size=found.world_size, nodes=best), alone
        return None, Placement(world_size=0, nodes={}), []

    async def _verifies(self, save: SaveId, ranks: Mapping[int, list[int]]) -> bool:
        """Whether the shards of these ranks verify in the memory of these nodes."""
        answers = await self._peers.call_each("rejoin_verify", ranks, save=save.to_json())
        unverified = [rank for answer in answers for rank in answer["unverified"]]
        if unverified:
            self._listener.problem("shard does not verify", f"rank {unverified[0]}, in memory", save.step)
        return not unverified
