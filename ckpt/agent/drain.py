"""A committed save on its way to the shared tier: every node writes its file, then one manifest makes it a checkpoint."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from ckpt.agent.deadlines import Deadlines
from ckpt.agent.holdings import Holdings
from ckpt.agent.listener import Listener
from ckpt.agent.peers import PeerError, Peers
from ckpt.agent.saves import Saves
from ckpt.agent.threads import in_thread
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError, CheckpointError
from ckpt.record.manifest import ShardPlace
from ckpt.record.shard import SaveId
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.tier import Tier


def shared_tier(config: CheckpointConfig) -> Tier | None:
    """The shared tier that the job configures."""
    return SharedTier(config.shared.path, config.namespace) if config.shared else None


class DrainPart:
    """What each node does: writes the shards of its own ranks, then frees their slots."""

    def __init__(self, place: Place, tier: Tier | None, saves: Saves, holdings: Holdings, peers: Peers) -> None:
        self._place = place
        self._tier = tier
        self._saves = saves
        self._holdings = holdings
        self._writing: int | None = None
        peers.handle("drain", self._on_drain)
        peers.handle("drained", self._on_drained)

    async def _on_drain(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        step = message["step"]
        names = self._saves.pinned.get(step)
        if names is None or self._tier is None:
            raise AgentError(f"step {step} is not held for the shared tier here")
        if self._writing is not None:
            raise AgentError(f"step {self._writing} is still being written; storage is stuck or slower than the saves")
        shards = []
        for _, name in sorted(names.items()):
            record = self._holdings.record(name)
            shards.append((record, self._holdings.bytes_of(name, record.layout.nbytes)))
        return {"places": [place.to_json() for place in await in_thread(self._write, self._tier, step, shards)]}

    def _write(self, tier: Tier, step: int, shards: list[Any]) -> list[ShardPlace]:
        """In its own thread, which may outlive the deadline: `_writing` says so."""
        self._writing = step
        try:
            tier.prepare()
            return tier.write_node(self._saves.save_id(step), self._place.node_rank, shards)
        finally:
            self._writing = None

    async def _on_drained(self, source: int, message: dict[str, Any]) -> None:
        await self._saves.drained(message["step"], message["failed"])


class DrainLead:
    """What node rank 0 does: decides what is drained, and commits it."""

    def __init__(
        self, place: Place, config: CheckpointConfig, tier: Tier | None, peers: Peers, listener: Listener,
        deadlines: Deadlines,
    ) -> None:  # fmt: skip
        self._place = place
        self._config = config
        self._tier = tier
        self._peers = peers
        self._listener = listener
        self._deadlines = deadlines
        self._one_at_a_time = asyncio.Lock()
        self._busy: set[int] = set()

    def wanted(self, step: int, asked: bool) -> bool:
        """Whether this step goes to the shared tier: when due, unless an older one is still on its way; or when asked for."""
        if self._config.shared is None:
            return False
        due = step % self._config.shared.every_steps == 0
        if due and self._busy and not asked:
            older = ", ".join(map(str, sorted(self._busy)))
            self._listener.problem("not drained to the shared tier", f"step {older} is still on its way there", step)
            return False
        if due or asked:
            self._busy.add(step)
        return due or asked

    async def lead(self, step: int, nbytes: int) -> None:
        """Takes a committed step to the shared tier; a failure is reported, and the slots are freed all the same."""
        if self._tier is None or self._config.shared is None:
            return
        since_s = time.monotonic()
        save = SaveId(step=step, attempt=self._place.attempt, run_id=self._place.run_id)
        async with self._one_at_a_time:
            try:
                answers = await self._peers.call_all("drain", timeout_s=self._deadlines.drain_s, step=step)
                places = [ShardPlace.from_json(value) for answer in answers for value in answer["places"]]
                await in_thread(self._tier.commit, save, self._place.world_size, places)
                failure = None
            except (CheckpointError, OSError) as error:
                failure = str(error)
                self._listener.problem("drain to the shared tier failed", failure, step)
            self._busy.discard(step)
            try:
                await self._peers.call_all(
                    "drained", timeout_s=self._deadlines.answer_s, step=step, failed=failure is not None
                )
            except PeerError as error:
                self._listener.problem("drain's end not heard by every node", str(error), step)
            if failure is None:
                seconds = round(time.monotonic() - since_s, 6)
                self._listener.to_monitors("commit", tier="shared", step=step, bytes=nbytes, seconds=seconds)
                await self._retain(self._tier, self._config.shared.keep)

    async def _retain(self, tier: Tier, keep: int) -> None:
        try:
            await in_thread(tier.retain, keep, None)
        except (CheckpointError, OSError) as error:
            self._listener.problem("old steps could not be removed from the shared tier", str(error))
