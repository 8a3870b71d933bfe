"""A node's part in a flush: writes its ranks' shards to a tier, and commits there if the tier is its own disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.rpc.messages import serves
from ckpt.agent.saves import NodeSaves
from ckpt.agent.storage_calls import in_thread
from ckpt.errors import AgentError, CorruptError
from ckpt.format.manifest import ShardPlace, pack
from ckpt.format.shard_record import SaveId
from ckpt.tiers import reads
from ckpt.tiers.tier import Tier


class FlushNode(Part):
    """Writes this node's shards, commits and removes saves on its own disk, and frees the slots."""

    def __init__(self, context: Context, saves: NodeSaves) -> None:
        super().__init__(context)
        self._saves = saves
        self._writing: dict[str, int] = {}  # the step that is being written, by tier
        # the save last written, by node-local tier; without places if this node had already committed it there
        self._written: dict[str, tuple[SaveId, list[ShardPlace]]] = {}

    @serves("flush_write")
    async def _on_flush_write(self, source: int, tier: str, save: SaveId) -> dict[str, Any]:
        pin, target, step = self._saves.pinned.get(save), self._context.tier(tier), save.step
        if pin is None:
            raise AgentError(f"step {step} is not held for the {tier} tier here")
        if (older := self._writing.get(tier)) is not None:
            raise AgentError(f"step {older} is still being written; storage is stuck or slower than the saves")
        memory_store, names = self._memory_store, [name for _, name in sorted(pin.names.items())]
        records = [memory_store.record(name) for name in names]
        shards = [
            (record, memory_store.bytes_of(name, record.nbytes)) for name, record in zip(names, records, strict=True)
        ]
        self._writing[tier] = step
        # During the write, which takes longer. If memory has changed since its seal, the file is not committed.
        verifying = asyncio.gather(*map(memory_store.verify_again, names))
        places = await in_thread(self._write, tier, target, pin.save, shards)
        for record, good in zip(records, await verifying, strict=True):
            if not good:
                raise CorruptError(f"rank {record.rank}: its shard in memory does not match its checksums any more")
        if target.node_local:
            self._written[tier] = (pin.save, places)
            return {}
        return {"places": pack(pin.save, places)}

    def _write(self, name: str, tier: Tier, save: SaveId, shards: list[Any]) -> list[ShardPlace]:
        """Runs in a thread, which may outlive the deadline. Until it ends, the tier is in `_writing`."""
        try:
            if tier.node_local:
                tier.prepare()
                if _is_committed(tier, save, [record.rank for record, _ in shards]):
                    return []
                tier.begin(save)
            return tier.write_node(save, self._place.node_rank, shards)
        finally:
            del self._writing[name]

    @serves("flush_commit")
    async def _on_flush_commit(self, source: int, tier: str, save: SaveId) -> None:
        """Commits this node's part of a step in a node-local tier."""
        written, places = self._written.get(tier, (None, []))
        if written != save:
            raise AgentError(f"step {save.step} has not been written to the {tier} tier here")
        if places:
            await in_thread(self._context.tier(tier).commit, save, self._place.world_size, places)

    @serves("flush_list")
    async def _on_flush_list(self, source: int, tier: str) -> dict[str, Any]:
        return {"saves": list(await in_thread(self._context.tier(tier).steps))}

    @serves("flush_retain")
    async def _on_flush_retain(self, source: int, tier: str, keep: int, complete: list[SaveId]) -> None:
        retain, lasting = self._context.tier(tier).retain, self._config.lower[tier].lasting
        await in_thread(partial(retain, keep, set(complete), lasting=lasting))

    @serves("flush_done")
    async def _on_flush_done(
        self, source: int, tier: str, save: SaveId, reached: bool, nbytes: int, seconds: float
    ) -> None:
        await self._saves.flushed(save, tier, reached, bytes=nbytes, seconds=seconds)


def _is_committed(tier: Tier, save: SaveId, ranks: Sequence[int]) -> bool:
    """Whether this node's disk has the save already: an earlier flush may have failed on other nodes only.

    Raises:
        CheckpointError: the disk has the save, but with other ranks or damaged. It is never written again.
        OSError: it cannot be read.
    """
    try:
        manifest = tier.read_manifest(save)
    except FileNotFoundError:
        return False
    there = {place.rank: place for place in manifest.shards}
    if missing := [rank for rank in ranks if rank not in there]:
        raise AgentError(
            f"{tier.where}: has step {save.step} already, without rank {missing[0]}; it is not overwritten"
        )
    for rank in ranks:
        reads.verify(reads.reader(tier, save, there[rank]), there[rank])
    return True
