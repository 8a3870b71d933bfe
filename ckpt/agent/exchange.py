"""Moves whole shards and parts of shards from one node's memory to another's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ckpt.agent.rpc.messages import serves
from ckpt.agent.rpc.peers import PeerError, Peers
from ckpt.agent.shards.memory_store import MemoryStore, block_ranges
from ckpt.agent.shards.node_disk import NodeDisk
from ckpt.errors import AgentError
from ckpt.format.checksums import block_count, checksum, span_of
from ckpt.format.shard_record import SaveId, ShardRecord


class Exchange:
    """Requests shards from other agents, and serves this node's. Data moves from map to map, never through the heap."""

    def __init__(self, peers: Peers, memory_store: MemoryStore, node_disk: NodeDisk) -> None:
        self._peers = peers
        self._memory_store = memory_store
        self._node_disk = node_disk
        peers.serve(self)

    async def record(self, node: int, save: SaveId, rank: int) -> ShardRecord:
        """The record of another node's shard. Raises PeerError."""
        answer = await self._peers.call(node, "record", save=save, rank=rank)
        record: ShardRecord = answer["record"]
        if (record.save, record.rank) != (save, rank):
            got = f"rank {record.rank} of {record.save}"
            raise PeerError(f"node {self._peers.nodes[node]}: sent {got}, expected rank {rank} of {save}")
        return record

    async def fetch(
        self, node: int, record: ShardRecord, into: Iterable[memoryview], blocks: Sequence[int] | None,
        landed: Callable[[memoryview], None] | None = None,
    ) -> None:  # fmt: skip
        """Fills memory with the given blocks (None: all), one after another, without verification. Raises PeerError.

        `landed` is called with each block, in order, once it has arrived.
        """
        await self._peers.pull(
            node, "shard_bytes", into, landed=landed,
            save=record.save, rank=record.rank, blocks=None if blocks is None else list(blocks),
        )  # fmt: skip

    async def pull(self, node: int, save: SaveId, rank: int, name: str) -> ShardRecord:
        """Copies another node's shard to `name` here, verified.

        The previous shard of this name is dropped first. Unverified bytes never get a record.

        Raises:
            PeerError: the node does not have it, or its bytes do not verify.
            OSError: memory is full.
        """
        record = await self.record(node, save, rank)
        sums: list[str] = []
        with self._memory_store.filling(name, nbytes := record.layout.nbytes) as room:
            into = (room(*span_of(block, nbytes)) for block in range(block_count(nbytes)))
            # each block while it is in the caches, in this thread: half a millisecond, while the next ones arrive
            await self.fetch(node, record, into, None, landed=lambda block: sums.append(checksum(block)))
            if damaged := [i for i, (got, sealed) in enumerate(zip(sums, record.blocks, strict=True)) if got != sealed]:
                where = f"node {self._peers.nodes[node]}: block {damaged[0]}"
                raise PeerError(f"{where} of rank {rank}, step {save.step} does not verify")
        self._memory_store.publish(name, record)
        return record

    @serves("record")
    async def _on_record(self, source: int, save: SaveId, rank: int) -> dict[str, Any]:
        return {"record": self._find(save, rank)[0]}

    @serves("shard_bytes")
    async def _on_shard_bytes(self, source: int, save: SaveId, rank: int, blocks: list[int] | None, tag: int) -> None:
        record, ranges = self._find(save, rank)
        count = block_count(record.nbytes)
        if blocks is not None and not all(type(block) is int and 0 <= block < count for block in blocks):
            raise AgentError(f"rank {rank}: blocks outside the shard's {count} asked for")
        self._peers.push(source, tag, ranges(blocks))

    def _find(self, save: SaveId, rank: int) -> tuple[ShardRecord, Callable[[Any], Iterable[memoryview]]]:
        """A shard's record, and a function that gives its blocks: from memory, else from this node's disk."""
        if names := self._memory_store.find(save, rank):
            record = self._memory_store.record(names[0])
            bytes_of = self._memory_store.bytes_of
            return record, lambda blocks: block_ranges(bytes_of(names[0], record.nbytes), blocks)
        on_disk = self._node_disk.shard(save, rank)
        return on_disk.record, on_disk.blocks
