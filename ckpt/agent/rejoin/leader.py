"""Node rank 0 leads agents that have replaced lost ones during an attempt, until saving continues.

inventory -> the newest save that is whole where its ranks run -> verify it, complete its redundancy -> workers save
again. That save may have been in flight when the old agents were lost. If all its shards are published, it counts as
committed from now on. Workers drop all other saves that were in flight. If this attempt has saved nothing yet, the
redundancy of the step that it restored is completed. Nothing is restored, and training continues meanwhile.
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
from ckpt.agent.flush.tier_contents import read_tier_contents
from ckpt.agent.shards.held import Held, ShardKind, held_saves, whole_in_place
from ckpt.agent.shards.plan import Placement
from ckpt.format.shard_record import SaveId

log = logging.getLogger(__name__)


class RejoinLeader(Part):
    """Finds the save to continue from, and completes its redundancy."""

    def __init__(self, context: Context, lease: Lease, flush: FlushLeader) -> None:
        super().__init__(context)
        self._lease = lease
        self._flush = flush

    async def run(self) -> None:
        """Leads all nodes to the point where saving continues.

        Raises:
            AgentError: a node failed, or another run uses the namespace. The message names it.
        """
        answers = await self._peers.call_all("inventory")
        contents, newest, _ = await asyncio.gather(
            read_tier_contents(self._context, answers, self._deadlines.tier_s), self._find(answers), self._lease.take()
        )
        save, moved = newest, None
        if newest is None or newest.attempt != self._place.attempt:  # this attempt has saved nothing yet
            moved = await self._find_moved(answers)
            if moved and (newest is None or moved.save.step > newest.step):
                save, newest = moved.save, None
            else:
                moved = None
        tiers = self._flush.resume(contents, newest)
        answers = await self._context.call_training("rejoin_adopt", save=save, tiers=tiers)
        if moved:  # if its redundancy cannot be completed, saving continues all the same
            alone = [rank for rank, nodes in moved.holders.items() if len(nodes) == 1]
            placement = Placement(world_size=moved.world_size, nodes=moved.best)
            what = "redundancy of the restored step is not complete"
            made = await self._try_all(what, "protect_restored", placement=placement, alone=alone)
        else:
            made = await self._context.call_training("protect_restored", placement=None, alone=None)
        boundary = max(answer["boundary"] for answer in answers)
        await self._context.call_training("rejoin_done", boundary=boundary)
        count = sum(answer["made"] for answer in made)
        step = f"step {save.step}, {count} pieces of redundancy made" if save else "nothing in memory yet"
        log.info("generation %d continues: %s", self._place.generation, step)
        if newest and tiers:
            await self._flush.lead(newest, sum(answer["pinned_bytes"] for answer in answers), tiers)

    async def _find(self, answers: list[dict[str, Any]]) -> SaveId | None:
        """The newest save whose every shard is in the memory of the node where its rank runs, and verifies."""
        for save in whole_in_place([answer["shards"] for answer in answers], self._place):
            if await self._verifies(save, {node: list(self._context.ranks(node)) for node in self._context.training}):
                return save
        return None

    async def _find_moved(self, answers: list[dict[str, Any]]) -> Held | None:
        """The newest save whose every shard is in the memory of some training node, and verifies.

        A world of another size has saved it, and this attempt has restored it. Holders may have left before its
        redundancy was complete.
        """
        found = (answers[node]["shards"] for node in self._context.training)
        for held in held_saves([one for one in shards if one.kind is not ShardKind.DISK] for shards in found):
            ranks: dict[int, list[int]] = defaultdict(list)
            for rank, node in held.best.items():
                ranks[node].append(rank)
            if not held.lost and await self._verifies(held.save, ranks):
                return held
        return None

    async def _verifies(self, save: SaveId, ranks: Mapping[int, list[int]]) -> bool:
        answers = await self._peers.call_each("rejoin_verify", ranks, save=save)
        unverified = [rank for answer in answers for rank in answer["unverified"]]
        if unverified:
            self._listener.problem("shard does not verify", f"rank {unverified[0]}, in memory", save.step)
        return not unverified
