"""Gives a loading worker the bytes of any saved rank: a local file, or blocks fetched from other nodes and tiers."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.restore.chosen import Chosen
from ckpt.agent.rpc.messages import serves
from ckpt.agent.rpc.peers import PeerError
from ckpt.agent.saves import NodeSaves
from ckpt.agent.shards.growing_buffer import Room
from ckpt.agent.shards.plan import Plan
from ckpt.agent.storage_calls import in_thread
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.checksums import block_count, span_of
from ckpt.format.manifest import Manifest
from ckpt.format.memory_names import data_file, fetched_name
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers import reads

Open = Callable[[], Awaitable[dict[str, Any]]]  # gives the answer to `open`
Fetch = Callable[[Room, list[int]], Awaitable[None]]  # fills blocks of a shard's memory

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Fetched:
    """The fetched blocks of one rank's shard in `fetch-<rank>.data`. If only the record was requested, no file."""

    source: str  # a node's or a tier's name
    record: ShardRecord
    path: Path
    blocks: set[int] = field(default_factory=set)


class Loading(Part):
    """One node's loads. The sources of a shard, best first: this node's memory and disk, other nodes, shared tiers."""

    def __init__(self, context: Context, plan: asyncio.Future[Plan], saves: NodeSaves) -> None:
        super().__init__(context)
        self._plan = plan
        self._saves = saves
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._fetched: dict[int, Fetched] = {}
        self._chosen = Chosen(context, saves)
        self._damaged: set[tuple[SaveId, int, str]] = set()  # save, rank and source that a worker has found damaged
        self._manifests: dict[tuple[str, SaveId], Manifest] = {}  # by tier and save
        self._loaded: set[int] = set()

    async def plan_for_worker(self) -> dict[str, Any]:
        """The restore plan. Waits until the agents have agreed on it, and this node's lost shards are rebuilt.

        A Checkpointer that follows another one in the same attempt also gets what that one has committed.
        """
        plan = await asyncio.shield(self._plan)
        committed = self._saves.of_this_attempt
        return {
            "save": plan.save, "tier": plan.tier, "world_size": plan.world_size, "skipped": plan.skipped_json(),
            "generation": self._place.generation, "pinned": (committed or plan.save) in self._saves.pinned,
            "next_line": [plan.next_number, plan.began_s], "is_head": plan.is_head, "committed": committed,
            "notice": plan.notice,
        }  # fmt: skip

    async def choose(self, step: int) -> dict[str, Any]:
        """Lets workers open another step than the restored one from now on. Raises AgentError if no tier has it."""
        plan = await self._chosen.plan(step)
        return {"save": plan.save, "tier": plan.tier, "world_size": plan.world_size}

    async def best(self) -> dict[str, Any]:
        """The best step by the metric of `keep_best`. Raises AgentError if there is none."""
        return {"step": await self._chosen.best()}

    @property
    def restored(self) -> Plan | None:
        """The plan that the agents have carried out; None if there is none."""
        return None if not self._plan.done() or self._plan.exception() else self._plan.result()

    async def _plan_of(self, step: int | None) -> Plan:
        plan = await asyncio.shield(self._plan)
        return plan if step in (None, plan.step) else self._chosen.known(step)

    async def open(self, step: int | None, rank: int, blocks: list[int] | None) -> dict[str, Any]:
        """Finds a location where a worker can read a saved rank's shard.

        Args:
            step: a chosen step; None: the restored one.
            rank: the rank in the world that saved the step.
            blocks: the blocks to read; None: all; []: only the record.

        Returns:
            path; base: the shard's first byte in this file; record; and whole: whether all blocks are there, not only
            the requested ones. The worker verifies what it reads.

        Raises:
            AgentError: no such step or rank, or no source left. The message has the reason for each source.
        """
        plan = await self._plan_of(step)
        if plan.save is None or not 0 <= rank < plan.world_size:
            raise AgentError(f"rank {rank}: the plan has step {plan.step} of {plan.world_size} ranks")
        async with self._locks[rank]:
            tried: list[str] = []
            for source in self._sources(plan, plan.save, rank, blocks):
                try:
                    return await source()
                except (CheckpointError, OSError) as error:
                    log.warning("rank %d of step %d: %s", rank, plan.step, error)
                    tried.append(str(error))
            reasons = "; ".join(tried) or "all were found damaged"
            raise AgentError(f"rank {rank} of step {plan.step}: no source left: {reasons}")

    async def damaged(self, step: int | None, rank: int, path: str) -> None:
        """Handles bytes that do not verify: their source is never offered again, and its node reads the shard again."""
        plan = await self._plan_of(step)
        if plan.save is None:
            return
        fetched = self._fetched.get(rank)
        if fetched is not None and path == str(fetched.path):
            self._forget(rank)
            self._damaged.add((plan.save, rank, fetched.source))
            if fetched.source in self._peers.nodes:
                node = self._peers.nodes.index(fetched.source)
                try:
                    await self._peers.call(node, "verify_again", save=plan.save, rank=rank)
                except PeerError as error:
                    log.warning("rank %d of step %d: %s", rank, plan.save.step, error)
            return
        self._damaged.add((plan.save, rank, path))
        await self._on_verify_again(self._place.node_rank, plan.save, rank)

    def loaded(self, local_rank: int, step: int | None, seconds: float) -> None:
        """A worker has finished its load. Once all have, the fetched blocks are removed.

        Args:
            step: the step that it goes on from; None: it has only read one.
        """
        self._loaded.add(local_rank)
        if len(self._loaded) == self._place.ranks_per_node:
            self._context.workers_loaded.set()
            self._loaded.clear()  # a script may load again
            self.forget_all()
            plan = self.restored
            if step is not None and plan is not None:
                taken = plan if step == plan.step else self._chosen.find(step)  # None: this attempt has committed it
                tier, line = (taken.tier, taken.line) if taken else ("memory", self._chosen.newest_line())
                is_other = line.script and line.script != self._place.owner.script
                whose = {"whose": line.whose} if is_other else {}
                self._listener.to_monitors(
                    "loaded", step=step, tier=tier, namespace=self._config.namespace, newest=plan.newest, **whose,
                    seconds=round(seconds, 6),
                )  # fmt: skip

    async def fetch(self, plan: Plan, rank: int, blocks: list[int] | None) -> None:
        """Fetches blocks (None: all) of a saved rank from another node, unless this node has them. Raises as `open`."""
        if plan.save is None or not 0 <= rank < plan.world_size:
            raise AgentError(f"rank {rank}: the plan has step {plan.step} of {plan.world_size} ranks")
        async with self._locks[rank]:
            if not self._memory_store.find(plan.save, rank) and not self._node_disk.find(plan.save, rank):
                await self._remote(plan.holders[rank][0], plan.save, rank, blocks)

    def forget_all(self) -> None:
        for rank in list(self._fetched):
            self._forget(rank)

    @serves("verify_again")
    async def _on_verify_again(self, source: int, save: SaveId, rank: int) -> None:
        """Drops shards of this node that are really damaged, so that no later restore counts on them."""
        for name in self._memory_store.find(save, rank):
            await self._memory_store.verify_again(name)
        await self._node_disk.verify_again(save, rank)

    def _sources(self, plan: Plan, save: SaveId, rank: int, blocks: list[int] | None) -> list[Open]:
        """The sources, best first, without those that were found damaged."""
        taken_in = rank in plan.fetched or rank in plan.leaving
        reader = [self._context.reader(rank, plan.world_size)] if taken_in else []
        nodes = [*plan.holders.get(rank, []), *reader]
        found = self._memory_store.find(save, rank)
        sources: list[tuple[str, Open]] = [(self._local_path(name), partial(self._local, name)) for name in found]
        if on_disk := self._node_disk.find(save, rank):
            sources.append((str(on_disk.path), partial(self._from_disk, save, rank)))
        for node in nodes:
            if node != self._place.node_rank:
                sources.append((self._peers.nodes[node], partial(self._remote, node, save, rank, blocks)))
        sources += [(name, partial(self._stored, name, save, rank, blocks)) for name in plan.stored]
        return [source for name, source in sources if (save, rank, name) not in self._damaged]

    async def _local(self, name: str) -> dict[str, Any]:
        if not await self._memory_store.verify(name):
            raise AgentError(f"{name} on this node does not verify")
        return _reply(self._local_path(name), 0, self._memory_store.record(name))

    async def _from_disk(self, save: SaveId, rank: int) -> dict[str, Any]:
        if not await self._node_disk.verify(save, rank):
            raise AgentError("the shard on this node's disk does not verify")
        on_disk = self._node_disk.shard(save, rank)
        return _reply(str(on_disk.path), on_disk.place.offset, on_disk.record)

    async def _remote(self, node: int, save: SaveId, rank: int, blocks: list[int] | None) -> dict[str, Any]:
        source = self._peers.nodes[node]
        fetched = self._fetched.get(rank)
        known = fetched is not None and (fetched.source, fetched.record.save) == (source, save)
        record = fetched.record if fetched and known else await self._exchange.record(node, save, rank)

        async def fetch(room: Room, missing: list[int]) -> None:
            into = (room(*span_of(block, len(room.data))) for block in missing)
            await self._exchange.fetch(node, record, into, missing)

        return await self._fetch(source, record, blocks, fetch)

    async def _stored(self, name: str, save: SaveId, rank: int, blocks: list[int] | None) -> dict[str, Any]:
        """The shard's file in a tier if workers can map it there; else blocks are fetched from the tier."""
        tier = self._context.tier(name)
        if (name, save) not in self._manifests:
            self._manifests[name, save] = await in_thread(tier.read_manifest, save)
        place = self._manifests[name, save].shards[rank]
        path = tier.data_path(save, place.file)
        if path is None:
            read = reads.reader(tier, save, place)

            async def fetch(room: Room, missing: list[int]) -> None:
                await in_thread(lambda: reads.read_blocks(read, room.all(), missing))

            return await self._fetch(name, place.record, blocks, fetch)
        if (save, rank, str(path)) in self._damaged:
            raise AgentError(f"{path}: damaged")
        return _reply(str(path), place.offset, place.record)

    async def _fetch(self, source: str, record: ShardRecord, blocks: list[int] | None, fetch: Fetch) -> dict[str, Any]:
        """Fetches those of the blocks (None: all) that have not been fetched yet."""
        rank, nbytes = record.rank, record.layout.nbytes
        fetched = self._fetched.get(rank)
        if fetched is None or (fetched.source, fetched.record.save) != (source, record.save):
            self._forget(rank)
            path = data_file(self._place.ram_dir, fetched_name(rank))
            fetched = self._fetched[rank] = Fetched(source=source, record=record, path=path)
        count = block_count(nbytes)
        if blocks == []:
            return _reply(str(fetched.path), 0, record, whole=len(fetched.blocks) == count)
        wanted = range(count) if blocks is None else sorted(set(blocks))
        if any(type(block) is not int or not 0 <= block < count for block in wanted):
            raise AgentError(f"rank {rank}: blocks {wanted} requested, the shard has {count}")
        missing = [block for block in wanted if block not in fetched.blocks]
        if missing or not count:  # an empty shard has a file too
            try:
                spans = [span_of(block, nbytes) for block in missing]
                with self._memory_store.room_for(fetched_name(rank), nbytes, spans) as room:
                    await fetch(room, missing)
            except BaseException:
                self._forget(rank)  # bytes may still be arriving there: never reuse this file
                raise
            fetched.blocks.update(missing)
        return _reply(str(fetched.path), 0, record, whole=len(fetched.blocks) == count)

    def _forget(self, rank: int) -> None:
        if self._fetched.pop(rank, None) is not None:
            self._memory_store.remove(fetched_name(rank))

    def _local_path(self, name: str) -> str:
        return str(data_file(self._place.ram_dir, name))


def _reply(path: str, base: int, record: ShardRecord, *, whole: bool = True) -> dict[str, Any]:
    return {"path": path, "base": base, "record": record, "whole": whole}
