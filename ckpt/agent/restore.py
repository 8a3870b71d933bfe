"""A node's part in a restore: says what it holds, verifies it, takes up the plan, makes its lost shards again."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

from ckpt.agent.context import Context
from ckpt.agent.exchange import save_to_json
from ckpt.agent.peers import Handler
from ckpt.agent.plan import Plan
from ckpt.agent.saves import Saves
from ckpt.agent.threads import in_thread
from ckpt.errors import AgentError, CheckpointError
from ckpt.record.blocks import BLOCK_BYTES, checksum
from ckpt.record.manifest import Manifest, ShardPlace, open_regular
from ckpt.record.shard import SaveId
from ckpt.tiers.tier import Tier

log = logging.getLogger(__name__)


class Restore:
    """From the question what this node holds to the answer what its workers restore."""

    def __init__(self, context: Context, saves: Saves) -> None:
        self.plan: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()
        self._since_s = time.monotonic()
        self._context = context
        self._saves = saves
        self._place = context.place
        self._holdings = context.holdings
        self._peers = context.peers
        self._listener = context.listener
        handlers: dict[str, Handler] = {
            "inventory": self._on_inventory, "verify": self._on_verify, "verify_shared": self._on_verify_shared,
            "restore": self._on_restore, "no_restore": self._on_no_restore, "protect_newest": self._on_protect_newest,
        }  # fmt: skip
        for op, handler in handlers.items():
            self._peers.handle(op, handler)

    def fail(self, reason: str) -> None:
        """There will be no plan: workers that ask for it are told why."""
        if not self.plan.done():
            self.plan.set_exception(AgentError(f"no restore could be agreed: {reason}"))
            self.plan.exception()  # seen, even when no worker ever asks
            self._listener.problem("no restore agreed", reason)

    async def _on_inventory(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        self._holdings.scan()
        shards = self._holdings.shards().items()
        return {
            "shards": [[save_to_json(r.save), r.world_size, r.rank, name.startswith("own-")] for name, r in shards],
            "parity": self._saves.parities.inventory(),
        }

    async def _on_verify(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """Which of the ranks asked for have no shard here that verifies. Those that do not are dropped."""
        save = SaveId.from_json(message["save"])
        good = await asyncio.gather(*(self._verify(save, rank) for rank in message["ranks"]))
        return {"bad": [rank for rank, is_good in zip(message["ranks"], good, strict=True) if not is_good]}

    async def _verify(self, save: SaveId, rank: int) -> bool:
        good = [await self._holdings.verify(name) for name in self._holdings.find(save, rank)]
        return any(good)

    async def _on_verify_shared(self, source: int, message: dict[str, Any]) -> None:
        """Reads some ranks' shards in the shared tier; raises CheckpointError or OSError naming what is bad."""
        if self._context.tier is None:
            raise AgentError("no shared tier is configured")
        save = SaveId.from_json(message["save"])
        manifest = await in_thread(self._context.tier.read_manifest, save)
        for rank in message["ranks"]:
            await in_thread(_verify_stored, self._context.tier, manifest, manifest.shards[rank])

    async def _on_restore(self, source: int, message: dict[str, Any]) -> None:
        try:
            await self._take_up(Plan.from_json(message["plan"]), message["same_world"])
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise

    async def _take_up(self, plan: Plan, same_world: bool) -> None:
        """This node's own shards are made again where they are lost; then workers may load."""
        self._saves.newest = plan.save
        if plan.save and plan.tier == "memory" and same_world:
            for local_rank, rank in enumerate(self._context.ranks(self._place.node_rank)):
                if not self._holdings.find(plan.save, rank):
                    await self._rebuild(plan.save, rank, local_rank, plan.holders[rank])
        seconds = round(time.monotonic() - self._since_s, 6)
        log.info("restore plan after %.3f s: step %d from %s", seconds, plan.step, plan.tier)
        self._listener.to_monitors(
            "restore_plan", step=plan.step, attempt_of_step=plan.attempt, tier=plan.tier, skipped=plan.skipped_json(),
            sources=self._sources(plan, same_world), seconds=seconds,
        )  # fmt: skip
        if not self.plan.done():
            self.plan.set_result(plan)

    async def _on_no_restore(self, source: int, message: dict[str, Any]) -> None:
        self.fail(message["reason"])

    async def _on_protect_newest(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        return {"made": await self._saves.protect_newest()}

    async def _rebuild(self, save: SaveId, rank: int, local_rank: int, holders: list[int]) -> None:
        """A lost shard of our own from another node's copy. When it fails, the load fetches it as it goes."""
        since_s = time.monotonic()
        for node in holders:
            name = self._holdings.free_name(f"own-{local_rank}", self._context.config.slots, keep=None)
            try:
                record = await self._context.exchange.pull(node, save, rank, name)
            except (CheckpointError, OSError) as error:
                self._listener.problem(f"rebuild of rank {rank}", str(error), save.step)
                continue
            self._listener.to_monitors(
                "rebuilt", rank=rank, from_node=self._peers.nodes[node], bytes=record.layout.nbytes,
                seconds=round(time.monotonic() - since_s, 6),
            )  # fmt: skip
            return

    def _sources(self, plan: Plan, same_world: bool) -> dict[str, str]:
        """In words, by saved rank: "own", "partner@<node>" (another node's memory), "parity" or "shared"."""
        words = {}
        for rank in range(plan.world_size):
            nodes = plan.holders.get(rank)
            home = self._context.home(rank) if same_world else self._place.node_rank
            if not nodes:
                words[str(rank)] = "shared"
            elif rank in plan.rebuilt:
                words[str(rank)] = "parity"
            else:
                words[str(rank)] = "own" if nodes[0] == home else f"partner@{self._peers.nodes[nodes[0]]}"
        return words


def _verify_stored(tier: Tier, manifest: Manifest, place: ShardPlace) -> None:
    """Reads one shard in the shared tier, a block at a time. Raises CheckpointError or OSError."""
    path = tier.data_path(manifest.save, place.file)
    descriptor = open_regular(path)
    try:
        for block, expected in enumerate(place.record.blocks):
            start = block * BLOCK_BYTES
            data = os.pread(descriptor, min(BLOCK_BYTES, place.record.layout.nbytes - start), place.offset + start)
            if checksum(data) != expected:
                raise AgentError(f"{path}: block {block} of rank {place.rank} does not match its checksum")
    finally:
        os.close(descriptor)
