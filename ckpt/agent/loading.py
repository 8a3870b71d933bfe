"""Gives a loading worker the bytes of any saved rank: a local file, or what it needs from another node, on demand."""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckpt.agent.context import Context
from ckpt.agent.exchange import save_to_json
from ckpt.agent.peers import PeerError
from ckpt.agent.plan import Plan
from ckpt.agent.threads import in_thread
from ckpt.errors import AgentError, CheckpointError
from ckpt.record.blocks import BLOCK_BYTES, block_count
from ckpt.record.manifest import Manifest
from ckpt.record.shard import SaveId, ShardRecord

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Fetched:
    """What has been fetched of one rank's shard into `fetch-<rank>.data`."""

    node: int
    record: ShardRecord
    path: Path
    data: memoryview
    blocks: set[int] = field(default_factory=set)


class Loading:
    """One node's loads. A shard's sources, best first: this node's memory, other nodes' memories, the shared tier."""

    def __init__(self, context: Context, plan: asyncio.Future[Plan]) -> None:
        self._context = context
        self._plan = plan
        self._place = context.place
        self._holdings = context.holdings
        self._exchange = context.exchange
        self._peers = context.peers
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fetched: dict[int, Fetched] = {}
        self._bad: set[tuple[int, str]] = set()  # rank and source that a worker has found damaged
        self._manifest: Manifest | None = None
        self._loaded: set[int] = set()
        self._peers.handle("bad", self._on_bad)

    async def plan_for_worker(self) -> dict[str, Any]:
        """What is restored; waits until the agents have agreed and this node's lost shards are made again."""
        plan = await asyncio.shield(self._plan)
        return {
            "step": plan.step, "attempt": plan.attempt, "tier": plan.tier, "world_size": plan.world_size,
            "skipped": plan.skipped_json(),
        }  # fmt: skip

    async def open(self, rank: int, blocks: list[int] | None) -> dict[str, Any]:
        """Where a worker can read a saved rank's shard.

        Args:
            rank: of the world that saved the step.
            blocks: those that it will read; None for all, [] for only the record.

        Returns:
            path, base (the shard's first byte in it) and record. The worker verifies what it reads.

        Raises:
            AgentError: nothing to restore, no such rank, or no source left; names what was tried.
        """
        plan = await asyncio.shield(self._plan)
        if plan.save is None or not 0 <= rank < plan.world_size:
            raise AgentError(f"rank {rank}: the plan has step {plan.step} of {plan.world_size} ranks")
        async with self._locks[rank]:
            tried: list[str] = []
            for source in self._sources(plan, plan.save, rank):
                try:
                    return await self._from(source, plan.save, rank, blocks)
                except (CheckpointError, OSError) as error:
                    log.warning("rank %d of step %d: %s", rank, plan.step, error)
                    tried.append(str(error))
            reasons = "; ".join(tried) or "all were found damaged"
            raise AgentError(f"rank {rank} of step {plan.step}: no source left: {reasons}")

    async def bad(self, rank: int, path: str) -> None:
        """A worker found bytes that do not verify: never offer that source again, and have its holder look."""
        plan = await asyncio.shield(self._plan)
        if plan.save is None:
            return
        fetched = self._fetched.get(rank)
        if fetched is not None and path == str(fetched.path):
            self._forget(rank)
            self._bad.add((rank, self._peers.nodes[fetched.node]))
            try:
                await self._peers.call(
                    fetched.node,
                    "bad",
                    timeout_s=self._context.deadlines.verify_s,
                    save=save_to_json(plan.save),
                    rank=rank,
                )
            except PeerError as error:
                log.warning("rank %d of step %d: %s", rank, plan.step, error)
            return
        self._bad.add((rank, path))
        await self._look_again(plan.save, rank)

    def loaded(self, local_rank: int) -> None:
        """A worker has finished its load; when all have, what was fetched for them goes."""
        self._loaded.add(local_rank)
        if len(self._loaded) == self._place.ranks_per_node:
            for rank in list(self._fetched):
                self._forget(rank)

    async def _on_bad(self, source: int, message: dict[str, Any]) -> None:
        await self._look_again(SaveId.from_json(message["save"]), message["rank"])

    async def _look_again(self, save: SaveId, rank: int) -> None:
        """Drops what really is damaged, so that no later restore counts on it."""
        for name in self._holdings.find(save, rank):
            await self._holdings.verify_again(name)

    def _sources(self, plan: Plan, save: SaveId, rank: int) -> list[str | int | None]:
        """Names in local memory, then node ranks, then None for the shared tier; without those found damaged."""
        local = [name for name in self._holdings.find(save, rank) if (rank, self._local_path(name)) not in self._bad]
        nodes = [
            node
            for node in plan.holders.get(rank, [])
            if node != self._place.node_rank and (rank, self._peers.nodes[node]) not in self._bad
        ]
        return [*local, *nodes, *([None] if plan.shared else [])]

    async def _from(
        self, source: str | int | None, save: SaveId, rank: int, blocks: list[int] | None
    ) -> dict[str, Any]:
        if source is None:
            return await self._stored(save, rank)
        if isinstance(source, int):
            return await self._remote(source, save, rank, blocks)
        if not await self._holdings.verify(source):
            raise AgentError(f"{source} on this node does not verify")
        return {"path": self._local_path(source), "base": 0, "record": self._holdings.record(source).to_json()}

    async def _remote(self, node: int, save: SaveId, rank: int, blocks: list[int] | None) -> dict[str, Any]:
        """Fetches the blocks that are not here yet."""
        fetched = self._fetched.get(rank)
        if fetched is None or fetched.node != node:
            self._forget(rank)
            record = await self._exchange.record(node, save, rank)
            path = self._place.ram_dir / f"fetch-{rank}.data"
            fetched = Fetched(node=node, record=record, path=path, data=_sparse(path, record.layout.nbytes))
            self._fetched[rank] = fetched
        count = block_count(fetched.record.layout.nbytes)
        wanted = range(count) if blocks is None else sorted(set(blocks))
        if any(type(block) is not int or not 0 <= block < count for block in wanted):
            raise AgentError(f"rank {rank}: blocks {wanted} asked for, the shard has {count}")
        missing = [block for block in wanted if block not in fetched.blocks]
        if missing:
            try:
                _allocate(fetched.path, missing, fetched.record.layout.nbytes)
                await self._exchange.fetch(node, fetched.record, fetched.data, missing)
            except BaseException:
                self._forget(rank)  # bytes may still be arriving there: never reuse this file
                raise
            fetched.blocks.update(missing)
        return {"path": str(fetched.path), "base": 0, "record": fetched.record.to_json()}

    async def _stored(self, save: SaveId, rank: int) -> dict[str, Any]:
        if self._context.tier is None:
            raise AgentError("no shared tier is configured")
        if self._manifest is None:
            self._manifest = await in_thread(self._context.tier.read_manifest, save)
        place = self._manifest.shards[rank]
        path = str(self._context.tier.data_path(save, place.file))
        if (rank, path) in self._bad:
            raise AgentError(f"{path}: damaged")
        return {"path": path, "base": place.offset, "record": place.record.to_json()}

    def _forget(self, rank: int) -> None:
        fetched = self._fetched.pop(rank, None)
        if fetched is not None:
            fetched.path.unlink(missing_ok=True)

    def _local_path(self, name: str) -> str:
        return str(self._place.ram_dir / f"{name}.data")


def _sparse(path: Path, nbytes: int) -> memoryview:
    """A new file of that length, mapped, without memory behind it yet."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.truncate(descriptor, nbytes)
        return memoryview(mmap.mmap(descriptor, nbytes)) if nbytes else memoryview(b"")
    finally:
        os.close(descriptor)


def _allocate(path: Path, blocks: list[int], nbytes: int) -> None:
    """Puts memory behind some blocks; raises OSError when there is none, rather than die of SIGBUS when they arrive."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for block in blocks:
            start = block * BLOCK_BYTES
            os.posix_fallocate(descriptor, start, min(BLOCK_BYTES, nbytes - start))
    finally:
        os.close(descriptor)
