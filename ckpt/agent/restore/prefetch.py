"""Reads for a load while lost shards are still being made again from parity, into another world size (degraded read).

What is prefetched goes to this node's memory (`fetch-*`), never to a worker: if the rebuild fails it is given up, and
the load starts from whatever is agreed then. `docs/adr/0011-parity-sums-are-gathered-where-they-are-made.md` says why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.protect.node import ProtectNode
from ckpt.agent.restore.plan import Plan
from ckpt.agent.restore.serve import Loading
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError, CheckpointError

log = logging.getLogger(__name__)


class PrefetchNode(Part):
    """One node's part: the plan that may come, and what is fetched for it."""

    def __init__(self, context: Context, final: asyncio.Future[Plan], loading: Loading, protect: ProtectNode) -> None:
        super().__init__(context)
        self._final = final
        self._loading = loading
        self._protect = protect
        self._plan = Plan()  # without a save: none is foreseen
        self._headers: Sequence[int] = ()  # nodes that keep the records of what is lost
        self._heard = asyncio.Event()
        self._tasks = Tasks()

    async def for_worker(self) -> dict[str, Any]:
        """The step and world size of the plan that may come; step None where there is nothing to prefetch."""
        async with Tasks() as tasks:
            either: list[asyncio.Future[Any]] = [tasks.hold(self._heard.wait()), self._final]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        plan = Plan() if self._final.done() else self._plan
        return {"step": plan.step, "world_size": plan.world_size}

    async def record(self, rank: int, blocks: list[int] | None) -> dict[str, Any] | None:
        """The answer to `open` for a record alone, of the plan foreseen; None when that is not what is asked for."""
        plan = self._plan
        if plan.save is None or self._final.done() or blocks != [] or not 0 <= rank < plan.world_size:
            return None
        if rank in plan.rebuilt:
            record = await self._protect.header(plan.save, rank, self._headers)
        else:
            record = await self._exchange.record(plan.holders[rank][0], plan.save, rank)
        return {"path": "", "base": 0, "record": record.to_json()}

    def fetch(self, step: int, wants: list[Any]) -> None:
        """Starts to fetch what a worker will read: rows of saved rank and blocks (None: all)."""
        if self._plan.step == step and not self._final.done():
            self._tasks.start(self._fetch(self._plan, wants))

    async def _fetch(self, plan: Plan, wants: list[Any]) -> None:
        for rank, blocks in wants:
            if rank in plan.rebuilt:
                continue
            try:
                await self._loading.fetch(plan, rank, blocks)
            except (CheckpointError, OSError) as error:  # the load finds another source, or says that there is none
                log.warning("rank %s of step %s is not prefetched: %s", rank, plan.step, error)

    async def _on_foresee(self, source: int, message: dict[str, Any]) -> None:
        if self._final.done():
            raise AgentError("a plan is there already")
        self._plan, self._headers = Plan.from_json(message["plan"]), message["headers"]
        self._heard.set()

    async def _on_withdraw(self, source: int, message: dict[str, Any]) -> None:
        """Gives up all that was prefetched, and its memory."""
        log.warning("step %s: its rebuild failed, what was prefetched is given up", self._plan.step)
        self._plan = Plan()
        await self._tasks.cancel()
        self._loading.forget_all()
