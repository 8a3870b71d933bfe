"""Each node's part in a flush: writes its ranks' shards to a tier, and commits there where the tier is its own disk."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.save.node import SaveNode
from ckpt.agent.storage_calls import in_thread
from ckpt.errors import AgentError, CorruptError
from ckpt.format.manifest import ShardPlace, pack
from ckpt.format.shard_record import SaveId
from ckpt.tiers import reads
from ckpt.tiers.tier import Tier


class FlushNode(Part):
    """Writes the shards of its own ranks, commits and tidies its own disk, frees the slots."""

    def __init__(self, context: Context, saves: SaveNode) -> None:
        super().__init__(context)
        self._saves = saves
        self._writing: dict[str, int] = {}  # step, by tier
        # The last file written, by node-local tier; no places: the node's part was committed there before.
        self._written: dict[str, tuple[SaveId, list[ShardPlace]]] = {}

    async def _on_flush_write(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        step, name = message["step"], message["tier"]
        pin, tier = self._saves.pinned.get(step), self._tier(name)
        if pin is None:
            raise AgentError(f"step {step} is not held for the {name} tier here")
        if (older := self._writing.get(name)) is not None:
            raise AgentError(f"step {older} is still being written; storage is stuck or slower than the saves")
        shards, memory_store = [], self._memory_store
        names = [pin.names[local_rank] for local_rank in sorted(pin.names)]
        for shard in names:
            record = memory_store.record(shard)
            shards.append((record, memory_store.bytes_of(shard, record.layout.nbytes)))
        self._writing[name] = step
        # Beside the write, which is slower: what has changed in memory since its seal is written, and never committed.
        verifying = asyncio.gather(*map(memory_store.verify_again, names))
        places = await in_thread(self._write, name, tier, pin.save, shards)
        for (record, _), good in zip(shards, await verifying, strict=True):
            if not good:
                raise CorruptError(f"rank {record.rank}: its shard in memory does not match its checksums any more")
        if tier.node_local:
            self._written[name] = (pin.save, places)
            return {}
        return {"places": pack(pin.save, places)}

    def _write(self, name: str, tier: Tier, save: SaveId, shards: list[Any]) -> list[ShardPlace]:
        """In its own thread, which may outlive the deadline: `_writing` says so."""
        try:
            if tier.node_local:
                tier.prepare()
                if _is_committed(tier, save, [record.rank for record, _ in shards]):
                    return []
                tier.begin(save)
            return tier.write_node(save, self._place.node_rank, shards)
        finally:
            del self._writing[name]

    async def _on_flush_commit(self, source: int, message: dict[str, Any]) -> None:
        """Node-local tiers only: this node's part of the step."""
        step = message["step"]
        save, places = self._written.get(message["tier"], (None, []))
        if save is None or step != save.step:
            raise AgentError(f"step {step} has not been written to the {message['tier']} tier here")
        if places:
            await in_thread(self._tier(message["tier"]).commit, save, self._place.world_size, places)

    async def _on_flush_list(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        saves = await in_thread(self._tier(message["tier"]).steps)
        return {"saves": [save.to_json() for save in saves]}

    async def _on_flush_retain(self, source: int, message: dict[str, Any]) -> None:
        complete = {SaveId.from_json(value) for value in message["complete"]}
        await in_thread(self._tier(message["tier"]).retain, message["keep"], complete)

    async def _on_flush_done(self, source: int, message: dict[str, Any]) -> None:
        await self._saves.flushed(
            message["step"], message["tier"], message["reached"], bytes=message["nbytes"], seconds=message["seconds"]
        )

    def _tier(self, name: str) -> Tier:
        tier = self._context.tiers.get(name)
        if tier is None:
            raise AgentError(f"no {name} tier is configured")
        return tier


def _is_committed(tier: Tier, save: SaveId, ranks: Sequence[int]) -> bool:
    """Whether this node's disk has the save already, as when a flush was cut short on other nodes alone.

    Raises:
        CheckpointError: it is there, and is of other ranks, or damaged: it is never written again.
        OSError: it cannot be read.
    """
    try:
        manifest = tier.read_manifest(save)
    except FileNotFoundError:
        return False
    there = {place.rank: place for place in manifest.shards}
    if missing := [rank for rank in ranks if rank not in there]:
        raise AgentError(f"{tier.where}: has step {save.step} already, without rank {missing[0]}; it stays as it is")
    for rank in ranks:
        reads.verify(reads.reader(tier, save, there[rank]), there[rank])
    return True
