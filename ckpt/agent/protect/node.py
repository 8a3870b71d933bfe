"""A node's redundancy: copies and parity of its set's shards, made at each save, and lost shards made from parity."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.protect.encode import Rows
from ckpt.agent.protect.gather_sum import Addend, HeldBytes, Sums, addends_of
from ckpt.agent.restore.plan import Placement
from ckpt.agent.shards.memory_store import ParityStore
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError, CheckpointError, CorruptError
from ckpt.format.checksums import Arriving, checksums
from ckpt.format.memory_names import PARITY, copy_stem, own_stem
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.redundancy import members_at, scheme_of
from ckpt.redundancy.parity_record import ParityRecord, ParitySet
from ckpt.redundancy.stripes import Sum

_AT_ONCE = 8  # sums of one rebuild: all of a set of the usual size, each made on another node


class ProtectNode(Part):
    """One node's copies and parity, and its part in the parity of others."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._parity_store = ParityStore(context.place.ram_dir, context.place.run_id, context.config.namespace)
        self._members = members_at(context.place, context.config.redundancy)
        scheme = scheme_of(context.config.redundancy)
        self._parity = scheme.parity(self._members) if self._members else 0
        self.sources = scheme.sources(context.place.node_rank, self._members) if self._members else ()
        self._index = self._members.index(context.place.node_rank) if self._members else -1  # -1: of a holder
        self._here = Addend(node=context.place.node_rank, coefficients=(), parts=())  # last of a sum that is made here
        self._copying, self._making = asyncio.Lock(), asyncio.Lock()  # a free name stays so until its record is there
        self._sums = Sums(context.peers, self._bytes_of)
        self._rows = Rows(context.peers, self._sums, self._members, self._index)

    async def make(self, save: SaveId, keep: Collection[SaveId] | None) -> int:
        """Makes the copies and the parity that this node lacks of a save; returns how many were made.

        Args:
            save: which.
            keep: saves whose redundancy must stay, as `free_name` takes it.

        Raises:
            PeerError: a member does not have its shards, or did not send.
            OSError: memory is full.
        """
        made = 0
        for node in self.sources:
            for local_rank, rank in enumerate(self._context.ranks(node)):
                made += await self._copy(save, rank, node, copy_stem(node, local_rank), keep)
        return made + await self._make_parity(save, keep)

    async def make_moved(self, save: SaveId, placement: Placement, alone: list[int]) -> int:
        """As `make` for a restored save, whose ranks lie on other nodes than in this attempt's sets.

        Args:
            save: which.
            placement: where its shards lie.
            alone: the ranks whose shard no other node holds: with copies, those get one on the node's partner.
        """
        made = 0
        for rank, node in ((rank, placement.nodes[rank]) for rank in alone):
            if node in self.sources:
                made += await self._copy(save, rank, node, copy_stem(node, 0), keep=None)
        return made + await self._make_parity(save, None, placement)

    async def _copy(self, save: SaveId, rank: int, node: int, stem: str, keep: Collection[SaveId] | None) -> int:
        """Pulls a copy of a node's shard, unless one that verifies is here; returns how many were made."""
        async with self._copying:
            if any([await self._memory_store.verify(name) for name in self._memory_store.find(save, rank)]):
                return 0
            name = self._memory_store.free_name(stem, self._config.slots, keep)
            await self._exchange.pull(node, save, rank, name)
            return 1

    async def _make_parity(
        self, save: SaveId, keep: Collection[SaveId] | None, placement: Placement | None = None
    ) -> int:
        """Makes this node's parity of what all members hold of a save, unless it is here; returns how many were made.

        Args:
            save: which.
            keep: saves whose parity must stay, as `free_name` takes it.
            placement: which shards lie where; None: this attempt's.

        Raises:
            PeerError: a member does not have its shards, or did not send.
            OSError: memory is full.
        """
        if not self._parity:
            return 0
        placement = placement or self._context.placement(self._members)
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
        """Those of which there is parity here."""
        return {record.save for record in self._parity_store.shards().values()}

    def tidy(self, keep: Collection[SaveId]) -> None:
        """After a commit: gives back the memory of parity beyond the normal slots that no kept save needs."""
        self._parity_store.tidy({PARITY} if self._parity else set(), self._config.slots, keep)

    def inventory(self, is_quarantined: Callable[[SaveId], bool]) -> list[Any]:
        """What parity is here, for the leader of a restore: (save, set, member, the set's nodes)."""
        self._parity_store.scan()
        records = [record for record in self._parity_store.shards().values() if not is_quarantined(record.save)]
        return [[r.save.to_json(), r.over.to_json(), r.index, list(r.members)] for r in records]

    async def header(self, save: SaveId, rank: int, nodes: Sequence[int]) -> ShardRecord:
        """The record of a lost shard, from whichever of some nodes keeps a copy; raises AgentError."""
        tried = []
        for node in nodes:
            try:
                answer = await self._peers.call(node, "header", save=save.to_json(), rank=rank)
                return ShardRecord.from_json(answer["header"])
            except CheckpointError as error:
                tried.append(str(error))
        raise AgentError(f"rank {rank} of step {save.step}: no copy of its record is left: {'; '.join(tried)}")

    async def _over(self, save: SaveId, ranks: tuple[tuple[int, ...], ...]) -> tuple[ParitySet, set[int]]:
        """What the members put under parity, and which of them have parity of the save and make none.

        Asked anew for each save: a shard's length may change.
        """
        own = dict(zip(self._members, map(list, ranks), strict=True))
        answers = await self._peers.call_each("lengths", own, save=save.to_json())
        over = ParitySet(
            parity=self._parity, ranks=ranks, lengths=tuple(tuple(answer["lengths"]) for answer in answers)
        )
        return over, {member for member, answer in enumerate(answers) if answer["has_parity"]}

    async def _headers(self, save: SaveId, over: ParitySet) -> tuple[ShardRecord, ...]:
        """The records of the members before this one, one for each that may be lost."""
        before = [self._index - i for i in range(1, self._parity + 1)]
        calls = [
            self._exchange.record(self._members[member], save, rank) for member in before for rank in over.ranks[member]
        ]
        return tuple(await asyncio.gather(*calls))

    def _bytes_of(self, message: dict[str, Any], part: HeldBytes) -> memoryview:
        save = SaveId.from_json(message["save"])
        if part.parity:
            over = ParitySet.from_json(message["over"])
            names = self._parity_store.find(save, over, part.rank)
            if not names:
                raise AgentError(f"parity {part.rank} of step {save.step} is not held here")
            return self._parity_store.bytes_of(names[0], self._parity_store.record(names[0]).nbytes)
        names = self._memory_store.find(save, part.rank)
        if not names:
            raise AgentError(f"rank {part.rank} of step {save.step} is not held here")
        return self._memory_store.bytes_of(names[0], self._memory_store.record(names[0]).nbytes)

    async def _on_lengths(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        save = SaveId.from_json(message["save"])
        names = [(rank, self._memory_store.find(save, rank)) for rank in message["ranks"]]
        if missing := [rank for rank, found in names if not found]:
            raise AgentError(f"rank {missing[0]} of step {save.step} is not held here")
        return {
            "lengths": [self._memory_store.record(found[0]).nbytes for _, found in names],
            "has_parity": save in self.saves(),
        }

    async def _on_header(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        save, rank = SaveId.from_json(message["save"]), message["rank"]
        for record in self._parity_store.shards().values():
            if record.save == save and (header := record.header(rank)):
                return {"header": header.to_json()}
        raise AgentError(f"no copy of the record of rank {rank}, step {save.step}")

    async def _on_verify_parity(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        save, over = SaveId.from_json(message["save"]), ParitySet.from_json(message["over"])
        names = self._parity_store.find(save, over, message["index"])
        return {"good": any([await self._parity_store.verify(name) for name in names])}

    async def _on_rebuild(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """Says what does not verify, should that be so: any other failure may be gone the next time."""
        since_s = time.monotonic()
        save, over, rank = SaveId.from_json(message["save"]), ParitySet.from_json(message["over"]), message["rank"]
        mine = self._context.ranks(self._place.node_rank)
        stem = own_stem(mine.index(rank)) if rank in mine else copy_stem(rank, 0)
        name = self._memory_store.free_name(stem, self._config.slots, keep=None)
        shard_at, parity_at = dict(message["shard_nodes"]), dict(message["parity_nodes"])
        try:
            async with Tasks() as tasks:
                header = tasks.hold(self.header(save, rank, message["headers"]))  # beside the bytes
                await self._fill(name, save, rank, header, over, shard_at, parity_at)
                record = await header
        except CorruptError as error:
            return {"damaged": str(error)}
        self._memory_store.publish(name, record)
        sources = ", ".join(self._peers.nodes[node] for node in sorted({*shard_at.values(), *parity_at.values()}))
        self._listener.to_monitors(
            "rebuilt", rank=rank, from_node=f"the parity of {sources}", bytes=record.nbytes,
            seconds=round(time.monotonic() - since_s, 6),
        )  # fmt: skip
        return {}

    async def _fill(
        self, name: str, save: SaveId, rank: int, header: asyncio.Future[ShardRecord], over: ParitySet,
        shard_at: dict[int, int], parity_at: dict[int, int],
    ) -> None:  # fmt: skip
        """The bytes of a lost shard. Raises CorruptError unless every block matches the record, made twice."""
        member = over.member_of(rank)
        if member is None:
            raise AgentError(f"rank {rank} is not under this parity")
        start, stop = over.range_of(rank)
        there = [i for i, ranks in enumerate(over.ranks) if all(rank in shard_at for rank in ranks)]
        sums = over.stripes().rebuild(member, start, stop, there, parity_at)
        limit = asyncio.Semaphore(_AT_ONCE)

        async def pull(number: int, part: Sum) -> None:
            addends = addends_of([part], over, shard_at, parity_at)
            turn = number % len(addends)  # no node makes all sums, nor has its link carry all that goes into them
            addends = [*addends[turn + 1 :], *addends[: turn + 1]] if len(addends) > 1 else [*addends, self._here]
            async with limit:
                await self._sums.pull(
                    save, over.to_json(), addends, part.nbytes,
                    lambda first, last: room(part.at + first, part.at + last),
                    landed=lambda first, last: coming.landed(part.at + first, part.at + last),
                )  # fmt: skip

        damaged: list[int] = []
        with self._memory_store.filling(name, stop - start) as room:
            for _ in range(2):  # a wire may have done it
                coming = Arriving(room.data)
                await asyncio.gather(*(pull(number, part) for number, part in enumerate(sums)))
                record = await header
                if record.nbytes != stop - start:
                    raise AgentError(f"rank {rank}: {record.nbytes} bytes by its record, {stop - start} under parity")
                pairs = enumerate(zip(coming.sums, record.blocks, strict=True))
                if not (damaged := [i for i, (got, sealed) in pairs if got != sealed]):
                    return
        raise CorruptError(f"block {damaged[0]} of rank {rank}, made again from parity, does not verify")
