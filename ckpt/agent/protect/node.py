"""A node's part in redundancy: makes copies and parity of its set's shards at each save, and rebuilds lost shards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.protect.encode import Rows
from ckpt.agent.protect.gather_sum import Addend, HeldBytes, Sums, addends_of
from ckpt.agent.rpc.messages import serves
from ckpt.agent.saves import NodeSaves
from ckpt.agent.shards.memory_store import ParityStore
from ckpt.agent.shards.plan import Placement
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError, CheckpointError, CorruptError
from ckpt.format.checksums import Arriving, checksums
from ckpt.format.memory_names import PARITY, copy_stem, own_stem
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.redundancy import members_at, scheme_of
from ckpt.redundancy.parity_record import ParityRecord, ParitySet
from ckpt.redundancy.stripes import Sum
from holdfast.base.deadlines import within

_AT_ONCE = 8  # concurrent sums of one rebuild, each made on another node: all, in a set of the default size


class ProtectNode(Part):
    """One node's copies and parity, and its part in making the parity of other nodes."""

    def __init__(self, context: Context, saves: NodeSaves) -> None:
        super().__init__(context)
        self._saves = saves
        self._parity_store = ParityStore(context.place.ram_dir, context.place.run_id, context.config.namespace)
        self._members = members_at(context.place, context.config.redundancy)
        scheme = scheme_of(context.config.redundancy)
        self._parity = scheme.parity(self._members) if self._members else 0
        self.sources = scheme.sources(context.place.node_rank, self._members) if self._members else ()
        self._index = self._members.index(context.place.node_rank) if self._members else -1  # -1 on a holder
        self._here = Addend(node=context.place.node_rank, coefficients=(), parts=())  # as the last: makes the sum here
        # held from the choice of a free name until its record exists
        self._copying, self._making = asyncio.Lock(), asyncio.Lock()
        self._sums = Sums(context.peers, self._bytes_of)
        self._rows = Rows(context.peers, self._sums, self._members, self._index)

    async def make(
        self, save: SaveId, keep: Collection[SaveId] | None, placement: Placement | None = None,
        alone: Collection[int] | None = None,
    ) -> int:  # fmt: skip
        """Makes the copies and the parity of a save that are missing on this node. Returns the number of pieces made.

        Args:
            keep: the saves whose redundancy must stay, as for `free_name`.
            placement: the nodes with its shards; None: where the ranks run in this attempt.
            alone: the ranks of which copies are made; None: all.

        Raises:
            PeerError: a member does not have its shards, or did not send them.
            OSError: memory is full.
        """
        made, placement = 0, placement or self._context.placement(self._members)
        for rank, node in placement.nodes.items():
            if node in self.sources and (alone is None or rank in alone):
                stem = copy_stem(node, rank % self._place.ranks_per_node)
                made += await self._copy(save, rank, node, stem, keep)
        return made + await self._make_parity(save, keep, placement)

    async def _copy(self, save: SaveId, rank: int, node: int, stem: str, keep: Collection[SaveId] | None) -> int:
        """Copies another node's shard, unless this node has one that verifies. Returns the number of copies made."""
        async with self._copying:
            if await self._memory_store.verify_any(save, rank):
                return 0
            name = self._memory_store.free_name(stem, self._config.slots, keep)
            await self._exchange.pull(node, save, rank, name)
            return 1

    async def _make_parity(self, save: SaveId, keep: Collection[SaveId] | None, placement: Placement) -> int:
        """Makes this node's parity of a save, unless it is here and verifies. Returns the number of parities made."""
        if not self._parity:
            return 0
        async with self._making:
            over, ready = await self._over(save, placement.of(self._members))
            if not any(over.ranks):
                return 0
            for name in self._parity_store.find(save, over, self._index):
                if await self._parity_store.verify(name):
                    return 0
            headers = await self._headers(save, over)
            name = self._parity_store.free_name(PARITY, self._config.slots, keep)
            with self._parity_store.filling(name, over.stripes().parity_bytes(self._index)) as room:
                await self._rows.make(save, over, ready, room)
                blocks = await asyncio.to_thread(checksums, room.data)
            record = ParityRecord(
                save=save, namespace=self._config.namespace, world_size=placement.world_size, over=over,
                members=tuple(self._place.nodes[node] for node in self._members), index=self._index, headers=headers,
                blocks=blocks,
            )  # fmt: skip
            self._parity_store.publish(name, record)
        return 1

    def saves(self) -> set[SaveId]:
        return {record.save for record in self._parity_store.shards().values()}

    def tidy(self, keep: Collection[SaveId]) -> None:
        """After a commit: frees the memory of additional parity that no kept save needs."""
        self._parity_store.tidy({PARITY} if self._parity else set(), self._config.slots, keep)

    def inventory(self, is_quarantined: Callable[[SaveId], bool]) -> list[Any]:
        """This node's parity, for the leader of a restore: rows of save, set, member and the set's nodes."""
        self._parity_store.scan()
        records = [record for record in self._parity_store.shards().values() if not is_quarantined(record.save)]
        return [[r.save.to_json(), r.over.to_json(), r.index, list(r.members)] for r in records]

    async def header(self, save: SaveId, rank: int, nodes: Sequence[int]) -> ShardRecord:
        """The record of a lost shard, from the first of some nodes that has a copy of it. Raises AgentError."""
        tried = []
        for node in nodes:
            try:
                answer = await self._peers.call(node, "header", save=save, rank=rank)
                record: ShardRecord = answer["header"]
                return record
            except CheckpointError as error:
                tried.append(str(error))
        raise AgentError(f"rank {rank} of step {save.step}: no copy of its record is left: {'; '.join(tried)}")

    async def _over(self, save: SaveId, ranks: tuple[tuple[int, ...], ...]) -> tuple[ParitySet, set[int]]:
        """The set of a save, and the indices of the members that already have their parity of it.

        The members are asked for each save, because the length of a shard may change.
        """
        own = dict(zip(self._members, map(list, ranks), strict=True))
        answers = await self._peers.call_each("lengths", own, save=save)
        over = ParitySet(
            parity=self._parity, ranks=ranks, lengths=tuple(tuple(answer["lengths"]) for answer in answers)
        )
        return over, {member for member, answer in enumerate(answers) if answer["has_parity"]}

    async def _headers(self, save: SaveId, over: ParitySet) -> tuple[ShardRecord, ...]:
        """The records of the shards of the members before this one: of as many members as may be lost."""
        before = [self._index - i for i in range(1, self._parity + 1)]
        calls = [
            self._exchange.record(self._members[member], save, rank) for member in before for rank in over.ranks[member]
        ]
        return tuple(await asyncio.gather(*calls))

    def _bytes_of(self, save: SaveId, over: ParitySet, part: HeldBytes) -> memoryview:
        if part.parity:
            if names := self._parity_store.find(save, over, part.rank):
                return self._parity_store.bytes_of(names[0], self._parity_store.record(names[0]).nbytes)
            raise AgentError(f"parity {part.rank} of step {save.step} is not held here")
        if names := self._memory_store.find(save, part.rank):
            return self._memory_store.bytes_of(names[0], self._memory_store.record(names[0]).nbytes)
        raise AgentError(f"rank {part.rank} of step {save.step} is not held here")

    @serves("lengths")
    async def _on_lengths(self, source: int, save: SaveId, ranks: list[int]) -> dict[str, Any]:
        names = [(rank, self._memory_store.find(save, rank)) for rank in ranks]
        if missing := [rank for rank, found in names if not found]:
            raise AgentError(f"rank {missing[0]} of step {save.step} is not held here")
        return {
            "lengths": [self._memory_store.record(found[0]).nbytes for _, found in names],
            "has_parity": save in self.saves(),
        }

    @serves("header")
    async def _on_header(self, source: int, save: SaveId, rank: int) -> dict[str, Any]:
        for record in self._parity_store.shards().values():
            if record.save == save and (header := record.header(rank)):
                return {"header": header}
        raise AgentError(f"no copy of the record of rank {rank}, step {save.step}")

    @serves("protect_restored")
    async def _on_protect_restored(
        self, source: int, placement: Placement | None, alone: list[int] | None
    ) -> dict[str, Any]:
        if self._saves.nothing_was_lost:  # then its redundancy is here too: a check would slow down the workers' load
            with suppress(asyncio.TimeoutError):
                await within(self._deadlines.load_s, self._context.workers_loaded.wait())
        newest = self._saves.newest
        return {"made": await self.make(newest, None, placement, alone) if newest else 0}

    @serves("verify_parity")
    async def _on_verify_parity(self, source: int, save: SaveId, over: ParitySet, index: int) -> dict[str, Any]:
        names = self._parity_store.find(save, over, index)
        return {"good": any([await self._parity_store.verify(name) for name in names])}

    @serves("rebuild")
    async def _on_rebuild(
        self, source: int, rank: int, save: SaveId, over: ParitySet, shard_nodes: list[Any], parity_nodes: list[Any],
        headers: list[int],
    ) -> dict[str, Any]:  # fmt: skip
        """Only bytes that do not verify are an answer. Any other failure may be temporary, so it is an error."""
        since_s = time.monotonic()
        mine = self._context.ranks(self._place.node_rank)
        stem = own_stem(mine.index(rank)) if rank in mine else copy_stem(rank, 0)
        name = self._memory_store.free_name(stem, self._config.slots, keep=None)
        shard_at, parity_at = dict(shard_nodes), dict(parity_nodes)
        try:
            async with Tasks() as tasks:
                header = tasks.hold(self.header(save, rank, headers))  # while the bytes arrive
                await self._fill(name, save, rank, header, over, shard_at, parity_at)
                record = await header
        except CorruptError as error:
            return {"damaged": str(error)}
        self._memory_store.publish(name, record)
        sources = ", ".join(self._peers.nodes[node] for node in sorted({*shard_at.values(), *parity_at.values()}))
        self._report_rebuilt(record, f"the parity of {sources}", since_s)
        return {}

    async def _fill(
        self, name: str, save: SaveId, rank: int, header: asyncio.Future[ShardRecord], over: ParitySet,
        shard_at: dict[int, int], parity_at: dict[int, int],
    ) -> None:  # fmt: skip
        """Fills `name` with the bytes of a lost shard.

        Raises:
            CorruptError: a block does not match the record, even at the second try.
        """
        member = over.member_of(rank)
        if member is None:
            raise AgentError(f"rank {rank} is not under this parity")
        start, stop = over.range_of(rank)
        there = [i for i, ranks in enumerate(over.ranks) if all(rank in shard_at for rank in ranks)]
        sums = over.stripes().rebuild(member, start, stop, there, parity_at)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def pull(number: int, part: Sum) -> None:
            addends = addends_of([part], over, shard_at, parity_at)
            turn = number % len(addends)  # spreads the sums, and the bytes that they need, over all nodes
            addends = [*addends[turn + 1 :], *addends[: turn + 1]] if len(addends) > 1 else [*addends, self._here]
            async with limit:
                await self._sums.pull(
                    save, over, addends, part.nbytes,
                    lambda first, last: room(part.at + first, part.at + last),
                    landed=lambda first, last: coming.landed(part.at + first, part.at + last),
                )  # fmt: skip

        damaged: list[int] = []
        with self._memory_store.filling(name, stop - start) as room:
            for _ in range(2):  # bytes may have been damaged on the network
                coming = Arriving(room.data)
                await asyncio.gather(*(pull(number, part) for number, part in enumerate(sums)))
                record = await header
                if record.nbytes != stop - start:
                    raise AgentError(f"rank {rank}: {record.nbytes} bytes in its record, {stop - start} under parity")
                pairs = enumerate(zip(coming.sums, record.blocks, strict=True))
                if not (damaged := [i for i, (got, sealed) in pairs if got != sealed]):
                    return
        raise CorruptError(f"block {damaged[0]} of rank {rank}, rebuilt from parity, does not verify")
