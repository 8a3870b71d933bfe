"""A node's part in a rejoin: verifies its own shards, completes their redundancy, lets its workers in."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.restore.plan import Placement
from ckpt.agent.save.node import SaveNode
from ckpt.agent.stop import Stop
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.shard_record import SaveId


class RejoinNode(Part):
    """Answers the leader, and the workers that have lost their agent."""

    def __init__(self, context: Context, saves: SaveNode, stop: Stop) -> None:
        super().__init__(context)
        self._since_s = time.monotonic()
        self._generation = context.place.generation
        self._saves = saves
        self._stop = stop
        self._agreed: asyncio.Future[SaveId | None] = asyncio.get_running_loop().create_future()

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

    async def _on_rejoin_verify(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """Which of some ranks have no shard of a save in memory here that verifies."""
        save, memory_store = SaveId.from_json(message["save"]), self._memory_store
        unverified = []
        for rank in message["ranks"]:
            if not any([await memory_store.verify(name) for name in memory_store.find(save, rank)]):
                unverified.append(rank)
        return {"unverified": unverified}

    async def _on_rejoin_protect(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """Takes a save up as the newest, and makes what redundancy it lacks here."""
        self._saves.newest = SaveId.from_json(message["save"]) if message["save"] else None
        pinned = self._saves.pin_newest(message["tiers"])
        if message["placement"]:
            made = await self._protect_moved(Placement.from_json(message["placement"]), message["alone"])
        else:
            made = await self._saves.protect_newest()
        return {"made": made, "boundary": self._stop.boundary, "pinned_bytes": pinned}

    async def _protect_moved(self, placement: Placement, alone: list[int]) -> int:
        """As ProtectNode.make_moved; a failure keeps nobody from saving."""
        save = self._saves.newest
        if save is None:
            return 0
        try:
            return await self._saves.protect.make_moved(save, placement, alone)
        except (CheckpointError, OSError) as error:
            self._listener.problem("redundancy of the restored step is not complete", str(error), save.step)
            return 0

    async def _on_rejoin_done(self, source: int, message: dict[str, Any]) -> None:
        self._stop.resume(message["boundary"])
        if not self._agreed.done():
            self._agreed.set_result(self._saves.newest)
        newest = self._saves.newest
        seconds = round(time.monotonic() - self._since_s, 6)
        self._listener.to_monitors(
            "rejoined", step=newest.step if newest else None, generation=self._generation, seconds=seconds
        )
