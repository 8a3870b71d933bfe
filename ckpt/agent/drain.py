"""A committed save goes to the shared tier: every node writes its file, then one manifest makes it a checkpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ckpt.agent.context import Context
from ckpt.agent.peers import PeerError
from ckpt.agent.saves import Saves
from ckpt.agent.threads import in_thread
from ckpt.errors import AgentError, CheckpointError
from ckpt.record.manifest import ShardPlace
from ckpt.tiers.tier import Tier


class DrainPart:
    """What each node does: writes the shards of its own ranks, then frees their slots."""

    def __init__(self, context: Context, saves: Saves) -> None:
        self._context = context
        self._saves = saves
        self._writing: int | None = None
        context.peers.handle("drain", self._on_drain)
        context.peers.handle("drained", self._on_drained)

    async def _on_drain(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        step = message["step"]
        names = self._saves.pinned.get(step)
        if names is None or self._context.tier is None:
            raise AgentError(f"step {step} is not held for the shared tier here")
        if self._writing is not None:
            raise AgentError(f"step {self._writing} is still being written; storage is stuck or slower than the saves")
        shards = []
        for _, name in sorted(names.items()):
            record = self._context.holdings.record(name)
            shards.append((record, self._context.holdings.bytes_of(name, record.layout.nbytes)))
        self._writing = step
        places = await in_thread(self._write, self._context.tier, step, shards)
        return {"places": [place.to_json() for place in places]}

    def _write(self, tier: Tier, step: int, shards: list[Any]) -> list[ShardPlace]:
        """In its own thread, which may outlive the deadline: `_writing` says so."""
        try:
            return tier.write_node(self._context.save_id(step), self._context.place.node_rank, shards)
        finally:
            self._writing = None

    async def _on_drained(self, source: int, message: dict[str, Any]) -> None:
        await self._saves.drained(
            message["step"], message["failed"], bytes=message["nbytes"], seconds=message["seconds"]
        )


class DrainLead:
    """What node rank 0 does: decides what is drained, and commits it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._shared = context.config.shared
        self._peers = context.peers
        self._listener = context.listener
        self._deadlines = context.deadlines
        self._one_at_a_time = asyncio.Lock()
        self._busy: set[int] = set()

    def wanted(self, step: int, asked: bool) -> bool:
        """Whether a step goes to the shared tier: when asked for, or when due and no older one is still on its way."""
        if self._shared is None:
            return False
        due = step % self._shared.every_steps == 0
        if due and self._busy and not asked:
            older = ", ".join(map(str, sorted(self._busy)))
            self._listener.problem("not drained to the shared tier", f"step {older} is still on its way there", step)
            return False
        if due or asked:
            self._busy.add(step)
        return due or asked

    async def lead(self, step: int, nbytes: int) -> None:
        """Takes a committed step to the shared tier; a failure is reported, and the slots are freed all the same."""
        tier, shared = self._context.tier, self._shared
        if tier is None or shared is None:
            return
        since_s = time.monotonic()
        async with self._one_at_a_time:
            try:
                await self._in_time(tier.prepare)
                answers = await self._peers.call_all("drain", timeout_s=self._deadlines.drain_s, step=step)
                places = [ShardPlace.from_json(value) for answer in answers for value in answer["places"]]
                save = self._context.save_id(step)
                await self._in_time(tier.commit, save, self._context.place.world_size, places)
                failure = None
            except (CheckpointError, OSError) as error:
                failure = str(error)
                self._listener.problem("drain to the shared tier failed", failure, step)
            self._busy.discard(step)
            seconds = round(time.monotonic() - since_s, 6)
            fields = {"step": step, "failed": failure is not None, "nbytes": nbytes, "seconds": seconds}
            try:
                await self._peers.call_all("drained", timeout_s=self._deadlines.answer_s, **fields)
            except PeerError as error:
                self._listener.problem("drain's end not heard by every node", str(error), step)
            if failure is None:
                self._listener.to_monitors("commit", tier="shared", step=step, bytes=nbytes, seconds=seconds)
                await self._retain(tier, shared.keep)

    async def _retain(self, tier: Tier, keep: int) -> None:
        try:
            await self._in_time(tier.retain, keep, None)
        except (CheckpointError, OSError) as error:
            self._listener.problem("old steps could not be removed from the shared tier", str(error))

    async def _in_time(self, function: Callable[..., Any], *args: Any) -> None:
        try:
            await asyncio.wait_for(in_thread(function, *args), self._deadlines.drain_s)
        except asyncio.TimeoutError:
            raise AgentError(f"the shared tier did not answer within {self._deadlines.drain_s:g} s") from None
