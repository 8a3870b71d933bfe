"""Reads for a load into another world size while lost shards are still being rebuilt from parity (degraded read).

Shards are prefetched into this node's memory (`fetch-*`), never into a worker. If the rebuild fails, they are removed,
and the load starts from the plan that is agreed then. The reasons are in
`docs/adr/0010-a-load-into-another-world-size-reads-ahead.md`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.protect.node import ProtectNode
from ckpt.agent.restore.serve import Loading
from ckpt.agent.rpc.messages import serves
from ckpt.agent.shards.plan import Plan
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError, CheckpointError

log = logging.getLogger(__name__)


class PrefetchNode(Part):
    """One node's part: the provisional plan, and what is fetched for it."""

    def __init__(self, context: Context, final: asyncio.Future[Plan], loading: Loading, protect: ProtectNode) -> None:
        super().__init__(context)
        self._final = final
        self._loading = loading
        self._protect = protect
        self._plan = Plan()  # the provisional plan; without a save: there is none
        self._headers: Sequence[int] = ()  # nodes with the records of the lost shards
        self._foreseen = asyncio.Event()
        self._tasks = Tasks()

    async def for_worker(self) -> dict[str, Any]:
        """Waits for a plan. Returns step and world size of the provisional one; step None if the final one is there."""
        async with Tasks() as tasks:
            either: list[asyncio.Future[Any]] = [tasks.hold(self._foreseen.wait()), self._final]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        plan = Plan() if self._final.done() else self._plan
        return {"step": plan.step, "world_size": plan.world_size}

    async def record(self, rank: int, blocks: list[int] | None) -> dict[str, Any] | None:
        """The answer to an `open` of only the record, by the provisional plan. None for any other `open`."""
        plan = self._plan
        if plan.save is None or self._final.done() or blocks != [] or not 0 <= rank < plan.world_size:
            return None
        if rank in plan.rebuilt:
            record = await self._protect.header(plan.save, rank, self._headers)
        else:
            record = await self._exchange.record(plan.holders[rank][0], plan.save, rank)
        return {"path": "", "base": 0, "record": record, "whole": False}

    def fetch(self, step: int, wants: list[Any]) -> None:
        """Starts to fetch what a worker will read: rows of saved rank and blocks (None: all), not lost shards."""
        if self._plan.step == step and not self._final.done():
            self._tasks.start(self._fetch(self._plan, wants))

    async def _fetch(self, plan: Plan, wants: list[Any]) -> None:
        for rank, blocks in wants:
            if rank in plan.rebuilt:
                continue
            try:
                await self._loading.fetch(plan, rank, blocks)
            except (CheckpointError, OSError) as error:  # the load finds another source, or reports it
                log.warning("rank %s of step %s is not prefetched: %s", rank, plan.step, error)

    @serves("foresee")
    async def _on_foresee(self, source: int, plan: Plan, headers: list[int]) -> None:
        if self._final.done():
            raise AgentError("the final plan exists already")
        self._plan, self._headers = plan, headers
        self._foreseen.set()

    @serves("withdraw")
    async def _on_withdraw(self, source: int) -> None:
        """Removes everything that was prefetched, which frees its memory."""
        log.warning("step %s: the rebuild failed; prefetched shards are removed", self._plan.step)
        self._plan = Plan()
        await self._tasks.cancel()
        self._loading.forget_all()
