"""Agents that take the place of lost ones in mid-attempt: workers train on, nobody restores, saving goes on.

inventory -> the newest save that lies whole where its ranks run -> verified, its redundancy made anew -> workers are
let in. That save may have been in flight when the old agents went: with all its shards sealed it is as good as any, and
it counts as committed from now on. Workers give up whatever else they had in flight. Where this world has saved nothing
yet, the redundancy of what it has restored is completed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from typing import Any

from ckpt.agent.context import Context
from ckpt.agent.flush.lease import Lease
from ckpt.agent.flush.node import FlushLeader
from ckpt.agent.flush.tier_contents import read_tier_contents, whole_anywhere, whole_in_place
from ckpt.agent.restore.plan import Placement
from ckpt.agent.save.node import SaveNode
from ckpt.agent.shards.transfer import save_to_json
from ckpt.agent.stop import Stop
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.shard_record import SaveId

TIER_S = 2.0  # for a tier to say what it holds; one that is slower has to wait for the next save that is due there

log = logging.getLogger(__name__)


class RejoinNode:
    """A node's part."""

    def __init__(self, context: Context, saves: SaveNode, stop: Stop) -> None:
        self._since_s = time.monotonic()
        self._context = context
        self._generation = context.place.generation
        self._saves = saves
        self._stop = stop
        self._agreed: asyncio.Future[SaveId | None] = asyncio.get_running_loop().create_future()
        context.peers.handle("rejoin_verify", self._on_verify)
        context.peers.handle("rejoin_protect", self._on_protect)
        context.peers.handle("rejoin_done", self._on_done)

    def fail(self, reason: str) -> None:
        """Nothing will be agreed: workers that ask are told why, and look for other agents."""
        if not self._agreed.done():
            self._agreed.set_exception(AgentError(reason))
            self._agreed.exception()  # seen, even when no worker ever asks

    async def for_worker(self, generation: int) -> dict[str, Any]:
        """Lets a worker in that has lost its agent, once saving can go on.

        Args:
            generation: of the agents that it has lost.

        Returns:
            step and attempt of the newest save, which the worker keeps (step 0: nothing is known), whether it is still
            on its way to a lower tier, and our generation.

        Raises:
            AgentError: it was ours that it lost.
        """
        if generation >= self._generation:
            raise AgentError(f"this worker has lost generation {generation}, this is {self._generation}")
        save = await asyncio.shield(self._agreed)
        step, attempt = (save.step, save.attempt) if save else (None, None)
        pinned = step in self._saves.pinned
        return {"step": step, "attempt": attempt, "generation": self._generation, "pinned": pinned}

    async def _on_verify(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """Which of this node's ranks have no shard of a save in memory that verifies."""
        save, memory_store = SaveId.from_json(message["save"]), self._context.memory_store
        unverified = []
        for rank in self._context.ranks(self._context.place.node_rank):
            if not any([await memory_store.verify(name) for name in memory_store.find(save, rank)]):
                unverified.append(rank)
        return {"unverified": unverified}

    async def _on_protect(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """Takes a save up as the newest, and makes what redundancy it lacks here."""
        self._saves.newest = SaveId.from_json(message["save"]) if message["save"] else None
        pinned = self._saves.pin_newest(message["tiers"])
        if message["placement"]:
            made = await self._protect_moved(Placement.from_json(message["placement"]), message["alone"])
        else:
            made = await self._saves.protect_newest()
        return {"made": made, "boundary": self._stop.boundary, "pinned_bytes": pinned}

    async def _protect_moved(self, placement: Placement, alone: list[int]) -> int:
        """As Saves.protect_moved; a failure keeps nobody from saving."""
        try:
            return await self._saves.protect_moved(placement, alone)
        except (CheckpointError, OSError) as error:
            step = self._saves.newest.step if self._saves.newest else None
            self._context.listener.problem("redundancy of the restored step is not complete", str(error), step)
            return 0

    async def _on_done(self, source: int, message: dict[str, Any]) -> None:
        self._stop.resume(message["boundary"])
        if not self._agreed.done():
            self._agreed.set_result(self._saves.newest)
        newest = self._saves.newest
        seconds = round(time.monotonic() - self._since_s, 6)
        self._context.listener.to_monitors(
            "rejoined", step=newest.step if newest else None, generation=self._generation, seconds=seconds
        )


class RejoinLeader:
    """What node rank 0 does."""

    def __init__(self, context: Context, lease: Lease, flush: FlushLeader) -> None:
        self._context = context
        self._lease = lease
        self._flush = flush
        self._peers = context.peers
        self._deadlines = context.deadlines

    async def run(self) -> None:
        """Brings all nodes to where saving can go on.

        Raises:
            AgentError: a node failed at it, or another run has the namespace; names it.
        """
        answers = await self._peers.call_all("inventory", timeout_s=self._deadlines.answer_s)
        contents, newest, _ = await asyncio.gather(
            read_tier_contents(self._context, answers, TIER_S), self._find(answers), self._lease.take()
        )
        self._flush.resume(contents)
        kept, fields = newest, dict[str, Any](placement=None, alone=[])
        if newest is None or newest.attempt != self._context.place.attempt:  # this attempt has saved nothing yet
            moved, placement, alone = await self._find_moved(answers)
            if moved is not None and (newest is None or moved.step > newest.step):
                newest, kept, fields = None, moved, {"placement": placement.to_json(), "alone": alone}
        tiers = self._flush.overdue(newest, contents) if newest else []
        fields |= {"save": save_to_json(kept) if kept else None, "tiers": tiers}
        answers = await self._call("rejoin_protect", self._deadlines.restore_s, **fields)
        made = sum(answer["made"] for answer in answers)
        boundary = max(answer["boundary"] for answer in answers)
        await self._call("rejoin_done", self._deadlines.answer_s, boundary=boundary)
        step = f"step {kept.step}, {made} pieces of redundancy made" if kept else "nothing in memory yet"
        log.info("generation %d goes on: %s", self._context.place.generation, step)
        if newest and tiers:
            await self._flush.lead(newest, sum(answer["pinned_bytes"] for answer in answers), tiers)

    async def _find(self, answers: list[dict[str, Any]]) -> SaveId | None:
        """The newest save whose every shard lies in the memory of the node where its rank runs, and verifies."""
        for save in whole_in_place([answer["shards"] for answer in answers], self._context.place):
            answers = await self._call("rejoin_verify", self._deadlines.verify_s, save=save_to_json(save))
            unverified = [rank for answer in answers for rank in answer["unverified"]]
            if not unverified:
                return save
            self._context.listener.problem("shard does not verify", f"rank {unverified[0]}, in memory", save.step)
        return None

    async def _find_moved(self, answers: list[dict[str, Any]]) -> tuple[SaveId | None, Placement, list[int]]:
        """What a world of another size has saved and this one has restored, while it has nothing of its own yet.

        Holders may have left, and with them redundancy that had yet to be made.

        Returns:
            The newest save whose every shard lies in the memory of a node that trains, and verifies; where; and the
            ranks whose shard only one node holds.
        """
        for save, world_size, holders in whole_anywhere([answers[node]["shards"] for node in self._context.training]):
            ranks: dict[int, list[int]] = defaultdict(list)
            for rank, nodes in holders.items():
                ranks[nodes[0]].append(rank)
            fields = {"save": save_to_json(save)}
            calls = [
                self._peers.call(node, "verify", timeout_s=self._deadlines.verify_s, ranks=here, **fields)
                for node, here in ranks.items()
            ]
            unverified = [rank for answer in await asyncio.gather(*calls) for rank in answer["unverified"]]
            if not unverified:
                placement = Placement(world_size=world_size, nodes={rank: nodes[0] for rank, nodes in holders.items()})
                return save, placement, [rank for rank, nodes in holders.items() if len(nodes) == 1]
            self._context.listener.problem("shard does not verify", f"rank {unverified[0]}, in memory", save.step)
        return None, Placement(world_size=0, nodes={}), []

    async def _call(self, op: str, timeout_s: float, **fields: Any) -> list[dict[str, Any]]:
        return await self._context.call_training(op, timeout_s=timeout_s, **fields)
