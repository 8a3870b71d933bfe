"""A node's part in a rejoin: verifies its shards, adopts the newest save, and lets its workers continue to save."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.rpc.messages import serves
from ckpt.agent.saves import NodeSaves
from ckpt.agent.stop import Stop
from ckpt.errors import AgentError
from ckpt.format.shard_record import SaveId


class RejoinNode(Part):
    """Serves the leader, and the workers that have lost their agent."""

    def __init__(self, context: Context, saves: NodeSaves, stop: Stop) -> None:
        super().__init__(context)
        self._since_s = time.monotonic()
        self._generation = context.place.generation
        self._saves = saves
        self._stop = stop
        self._agreed: asyncio.Future[SaveId | None] = asyncio.get_running_loop().create_future()

    def fail(self, reason: str) -> None:
        """There will be no agreement. Workers that ask get the reason, and wait for other agents."""
        if not self._agreed.done():
            self._agreed.set_exception(AgentError(reason))
            self._agreed.exception()  # marks it as retrieved, even if no worker asks

    async def for_worker(self, generation: int) -> dict[str, Any]:
        """Waits for the agreement, for a worker that has lost its agent.

        Args:
            generation: of the lost agents.

        Returns:
            save: the newest save, whose slot the worker keeps (None: no save is known); pinned: whether
            it is still being flushed; and the generation of these agents.

        Raises:
            AgentError: these are the agents that the worker has lost, or there was no agreement.
        """
        if generation >= self._generation:
            raise AgentError(f"this worker has lost generation {generation}, this is {self._generation}")
        save = await asyncio.shield(self._agreed)
        pinned = save in self._saves.pinned
        return {"save": save, "generation": self._generation, "pinned": pinned}

    @serves("rejoin_verify")
    async def _on_rejoin_verify(self, source: int, save: SaveId, ranks: list[int]) -> dict[str, Any]:
        return {"unverified": [rank for rank in ranks if not await self._memory_store.verify_any(save, rank)]}

    @serves("rejoin_adopt")
    async def _on_rejoin_adopt(self, source: int, save: SaveId | None, tiers: list[str]) -> dict[str, Any]:
        self._saves.adopted(save)
        return {"pinned_bytes": self._saves.pin_newest(tiers) or 0, "boundary": self._stop.boundary}

    @serves("rejoin_done")
    async def _on_rejoin_done(self, source: int, boundary: int) -> None:
        self._stop.resume(boundary)
        newest = self._saves.newest
        if not self._agreed.done():
            self._agreed.set_result(newest)
        seconds = round(time.monotonic() - self._since_s, 6)
        self._listener.to_monitors(
            "rejoined", step=newest.step if newest else None, generation=self._generation, seconds=seconds
        )
