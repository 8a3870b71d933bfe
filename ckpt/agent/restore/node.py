"""A node's part in a restore: reports and verifies its shards, carries out the plan, rebuilds its lost shards."""

from __future__ import annotations

import asyncio
import errno
import logging
import time
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.protect.node import ProtectNode
from ckpt.agent.restore.handover import Handover
from ckpt.agent.rpc.messages import serves
from ckpt.agent.saves import NodeSaves
from ckpt.agent.shards.held import ShardKind
from ckpt.agent.shards.plan import Plan
from ckpt.agent.storage_calls import in_thread
from ckpt.capacity import node_memory
from ckpt.errors import AgentError, CheckpointError, CorruptError
from ckpt.format.manifest import Manifest, ShardPlace
from ckpt.format.memory_names import OWN, copy_stem, own_stem
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers import reads
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.quarantine import note_quarantined, noted_reason
from holdfast.base.deadlines import within

_DISK_PART = 0.8  # of a message's deadline: time for this node's disk, so that one that hangs is passed over in time
_AT_ONCE = 2  # shards fetched at once: while one fills the network, the first bytes of the other are requested

log = logging.getLogger(__name__)


class RestoreNode(Part):
    """From this node's inventory to the plan for its workers."""

    def __init__(self, context: Context, saves: NodeSaves, protect: ProtectNode) -> None:
        super().__init__(context)
        self.plan: asyncio.Future[Plan] = asyncio.get_running_loop().create_future()
        self._since_s = time.monotonic()
        self._saves, self._protect = saves, protect
        self._handover = Handover(context)

    def fail(self, reason: str) -> None:
        """No plan was agreed. Workers that ask for it get the reason."""
        if not self.plan.done():
            self.refuse(f"no restore could be agreed: {reason}")
            self._listener.problem("no restore agreed", reason)

    def refuse(self, reason: str) -> None:
        """Workers that ask for the plan get a reason. This is not a problem."""
        self.plan.set_exception(AgentError(reason))
        self.plan.exception()  # marks it as retrieved, even if no worker asks

    @serves("inventory")
    async def _on_inventory(self, source: int) -> dict[str, Any]:
        self._memory_store.scan()
        if problem := await self._node_disk.scan(self._place.who, self._deadlines.answer_s * _DISK_PART / 2):
            self._listener.problem("this node's disk cannot be read", problem)
        held = self._saves.held()
        shards = [one for one in held if one.kind is ShardKind.DISK or not self._is_quarantined(one.save)]
        parity = self._protect.inventory(self._is_quarantined)
        return {"shards": shards, "parity": parity, "nvme_last_s": self._node_disk.last_commit_s}

    def _is_quarantined(self, save: SaveId) -> bool:
        return noted_reason(self._place.ram_dir, directory_name(save)) is not None

    @serves("verify")
    async def _on_verify(self, source: int, save: SaveId, ranks: list[int]) -> dict[str, Any]:
        """The requested ranks without a shard here that verifies. Damaged shards are dropped."""
        good = await asyncio.gather(*(self._verify(save, rank) for rank in ranks))
        return {"unverified": [rank for rank, is_good in zip(ranks, good, strict=True) if not is_good]}

    async def _verify(self, save: SaveId, rank: int) -> bool:
        """Verifies a shard in memory, else on this node's disk.

        A shard of this node's ranks is read from disk into memory.
        """
        if await self._memory_store.verify_any(save, rank):
            return True
        limit_s = self._deadlines.verify_s * _DISK_PART
        try:
            return await within(limit_s, self._verify_on_disk(save, rank))
        except TimeoutError:
            self._node_disk.strike(save, rank, AgentError(f"not read within {limit_s:g} s"))
            return False

    async def _verify_on_disk(self, save: SaveId, rank: int) -> bool:
        on_disk = self._node_disk.find(save, rank)
        if on_disk is None or not self._is_ours(rank, on_disk.record):
            return await self._node_disk.verify(save, rank)
        try:
            await self._bring_in(on_disk.place, on_disk.read, "nvme")
        except CorruptError as error:
            self._node_disk.strike(save, rank, error)
            return False
        except OSError:  # memory may be full; a worker can read it from the disk
            return await self._node_disk.verify(save, rank)
        return True

    @serves("verify_stored")
    async def _on_verify_stored(self, source: int, tier: str, save: SaveId, ranks: list[int]) -> dict[str, Any]:
        """Reads some ranks' shards from a shared tier, and reports damaged or missing ones. Raises every other failure.

        A shard that cannot be mapped in the tier is read into this node's memory for all nodes: into its slot if its
        rank runs on this node, else as a copy, as long as there is space.
        """
        store, fetched = self._context.tier(tier), list[int]()
        manifest = await in_thread(store.read_manifest, save)
        for rank in ranks:
            place = manifest.shards[rank]
            read = reads.reader(store, save, place)
            try:
                is_mapped = store.data_path(save, place.file) is not None
                if not is_mapped and await self._take_in(manifest, place, read, tier):
                    fetched.append(rank)
                else:
                    await in_thread(reads.verify, read, place)
            except CorruptError as error:
                return {"fetched": fetched, "damaged": str(error)}
            except FileNotFoundError as error:
                return {"fetched": fetched, "missing": str(error)}
        return {"fetched": fetched}

    def _is_ours(self, rank: int, record: ShardRecord) -> bool:
        """Whether the same rank, on this node, will load this shard and continue from it."""
        ranks = self._context.ranks(self._place.node_rank)
        return record.world_size == self._place.world_size and rank in ranks

    async def _take_in(self, manifest: Manifest, place: ShardPlace, read: reads.ReadAt, tier: str) -> bool:
        """Reads a shard into this node's memory, verified.

        False if there is no space. Raises CorruptError or OSError.
        """
        record = place.record
        if await self._memory_store.verify_any(record.save, record.rank):
            return True
        if self._is_ours(record.rank, record):
            await self._bring_in(place, read, tier)
            return True
        if not self._has_room(manifest, record.nbytes):
            return False
        try:
            await self._fill(copy_stem(self._place.node_rank, 0), place, read)
        except OSError as error:  # other shards have taken the space; each node that needs the shard reads it then
            if error.errno != errno.ENOSPC:
                raise
            return False
        return True

    def _has_room(self, manifest: Manifest, nbytes: int) -> bool:
        """Whether this many more bytes leave space for this node's part of the step: one load, and all its saves."""
        each, account = node_memory(self._config, self._place, manifest.nbytes)
        made_bytes = self._memory_store.file_bytes(OWN)  # by workers, as far as they have been allocated
        slots_bytes = max(0, account.own_bytes - made_bytes)
        wanted = nbytes + self._place.ranks_per_node * each + slots_bytes + account.redundancy_bytes
        return wanted <= self._memory_store.free_bytes()

    async def _bring_in(self, place: ShardPlace, read: reads.ReadAt, tier: str) -> None:
        """Reads a verified shard into a free slot of its rank. Raises CorruptError or OSError."""
        since_s, record = time.monotonic(), place.record
        local_rank = record.rank - self._context.ranks(self._place.node_rank).start
        await self._fill(own_stem(local_rank), place, read)
        self._report_rebuilt(record, self._place.node, since_s, tier=tier)

    async def _fill(self, stem: str, place: ShardPlace, read: reads.ReadAt) -> None:
        """Reads a verified shard under a free name. Raises CorruptError or OSError."""
        name = self._memory_store.free_name(stem, self._config.slots, keep=None)
        with self._memory_store.filling(name, place.record.nbytes) as room:
            await in_thread(lambda: reads.read_whole(read, place, room.all()))
        self._memory_store.publish(name, place.record)

    @serves("restore")
    async def _on_restore(self, source: int, plan: Plan, same_world: bool, tiers: list[str]) -> dict[str, Any]:
        try:
            return await self._take_up(plan, same_world, tiers)
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise

    async def _take_up(self, plan: Plan, same_world: bool, tiers: list[str]) -> dict[str, Any]:
        """Rebuilds this node's lost shards, or takes over those of others. Then workers may load.

        Returns:
            The bytes that are pinned for a flush, and the ranks whose shards were taken over.
        """
        self._saves.restored(plan.save, nothing_was_lost=same_world and plan.is_in_place(self._context.home))
        if plan.save is None:
            self._context.workers_loaded.set()
        if plan.save and same_world:
            await self._fetch_all(plan.save, plan.holders)
        taken = await self._handover.run(plan)
        seconds = round(time.monotonic() - self._since_s, 6)
        log.info("restore plan after %.3f s: step %s from %s", seconds, plan.step, plan.tier)
        self._listener.to_monitors(
            "restore_plan", step=plan.step or 0, attempt_of_step=plan.attempt, tier=plan.tier,
            namespace=self._config.namespace, skipped=plan.skipped_json(), left=list(plan.left),
            sources=self._sources(plan, same_world), seconds=seconds,
        )  # fmt: skip
        pinned = self._saves.pin_newest(tiers) or 0
        if not self.plan.done():
            self.plan.set_result(plan)
        return {"pinned_bytes": pinned, "taken": taken}

    @serves("no_restore")
    async def _on_no_restore(self, source: int, reason: str) -> None:
        self.fail(reason)

    @serves("quarantine")
    async def _on_quarantine(self, source: int, save: SaveId, reason: str) -> None:
        if reason:
            note_quarantined(self._place.ram_dir, directory_name(save), reason)
        if moved := await self._node_disk.quarantine(save):
            self._listener.problem("step quarantined", ": ".join(moved), save.step)

    async def _fetch_all(self, save: SaveId, holders: dict[int, list[int]]) -> None:
        limit = asyncio.Semaphore(_AT_ONCE)

        async def fetch(local_rank: int, rank: int) -> None:
            async with limit:
                if not self._memory_store.find(save, rank):
                    await self._fetch(save, rank, local_rank, holders.get(rank, []))

        ranks = self._context.ranks(self._place.node_rank)
        await asyncio.gather(*(fetch(*item) for item in enumerate(ranks)))

    async def _fetch(self, save: SaveId, rank: int, local_rank: int, holders: list[int]) -> None:
        """Copies a lost shard of this node from another node. If that fails, the load fetches it."""
        since_s = time.monotonic()
        for node in [node for node in holders if node != self._place.node_rank]:  # this node's disk was tried already
            name = self._memory_store.free_name(own_stem(local_rank), self._config.slots, keep=None)
            try:
                record = await self._exchange.pull(node, save, rank, name)
            except (CheckpointError, OSError) as error:
                self._listener.problem(f"rebuild of rank {rank}", str(error), save.step)
                continue
            self._report_rebuilt(record, self._peers.nodes[node], since_s)
            return

    def _sources(self, plan: Plan, same_world: bool) -> dict[str, list[int]]:
        """The saved ranks by source: "own" or "partner@<node>" (memory), "parity", "nvme" or "nvme@<node>", or a
        tier."""
        ranks: dict[str, list[int]] = {}
        for rank in range(plan.world_size):
            nodes = plan.holders.get(rank)
            home = self._context.home(rank) if same_world else self._place.node_rank
            if not nodes:
                source = plan.tier
            elif rank in plan.rebuilt:
                source = "parity"
            elif nodes[0] == home:
                source = "nvme" if rank in plan.nvme else "own"
            else:
                kind = "nvme" if rank in plan.nvme else "partner"
                source = f"{kind}@{self._peers.nodes[nodes[0]]}"
            ranks.setdefault(source, []).append(rank)
        return ranks
