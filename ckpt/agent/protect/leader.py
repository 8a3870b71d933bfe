"""Node rank 0 leads the rebuild of lost shards from parity, where enough parity is left."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.rpc.peers import all_of
from ckpt.agent.shards.held import Held
from ckpt.errors import CheckpointError, CorruptError
from ckpt.format.shard_record import SaveId
from ckpt.redundancy.parity_record import ParitySet


@dataclass(kw_only=True)
class Found:
    """The parity of one set that nodes have reported."""

    members: tuple[str, ...]  # names of the set's nodes when the parity was made
    holders: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # nodes, by member

    @property
    def keepers(self) -> list[int]:
        """The nodes that have any of it, and with it copies of shards' records."""
        return sorted({node for nodes in self.holders.values() for node in nodes})


class RebuildLeader(Part):
    """Collects the nodes' parity, and has lost shards rebuilt from it."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._found: dict[SaveId, dict[ParitySet, Found]] = defaultdict(dict)

    def note(self, node: int, inventory: list[Any]) -> None:
        """Adds the parity that a node has reported."""
        for save_json, over_json, index, members in inventory:
            sets = self._found[SaveId.from_json(save_json)]
            found = sets.setdefault(ParitySet.from_json(over_json), Found(members=tuple(members)))
            found.holders[index].append(node)

    async def prospect(self, held: Held, on_disks: Collection[int]) -> list[int]:
        """The nodes with the records of the lost shards; none unless enough parity verifies to rebuild all of them.

        Changes nothing. Args as for `bring_back`.
        """
        left, keepers = set(held.lost), set[int]()
        for over, found in self._found.get(held.save, {}).items():
            if lost := [rank for rank in left if over.member_of(rank) is not None]:
                try:
                    await self._work(held, on_disks, over, found, lost)
                except CheckpointError:
                    continue
                left.difference_update(lost)
                keepers.update(found.keepers)
        return [] if left else sorted(keepers)

    async def bring_back(self, held: Held, on_disks: Collection[int]) -> tuple[list[int], str, str]:
        """Has lost shards rebuilt, as far as that is possible.

        Args:
            held: the save. Only holders whose shard verifies; the rebuilt ranks are added.
            on_disks: ranks whose shard is in no memory. Sums are made from memory only.

        Returns:
            The rebuilt ranks, all verified; why others were not rebuilt; and the same reason again if the only cause
            is that rebuilt bytes do not match.
        """
        made: list[int] = []
        reasons: list[str] = []
        damaged: list[str] = []
        for over, found in self._found.get(held.save, {}).items():
            lost = [rank for rank in held.lost if over.member_of(rank) is not None]
            if not lost:
                continue
            try:
                builders = await self._rebuild(held, on_disks, over, found, lost)
            except CheckpointError as error:
                reasons.append(f"no rebuild from the parity of {', '.join(found.members)}: {error}")
                damaged += reasons[-1:] if isinstance(error, CorruptError) else []
                continue
            held.holders.update({rank: [node] for rank, node in builders.items()})
            made += lost
        return made, "; ".join(reasons), "; ".join(damaged) if damaged == reasons else ""

    async def _rebuild(
        self, held: Held, on_disks: Collection[int], over: ParitySet, found: Found, lost: list[int]
    ) -> dict[int, int]:
        """Has lost shards of one set rebuilt. Returns the node of each rank.

        Raises:
            CorruptError: the result does not match the shard's record, although everything it is made of verifies.
            CheckpointError: a shard could not be rebuilt.
        """
        builders, fields = await self._work(held, on_disks, over, found, lost)
        calls = (self._peers.call(node, "rebuild", rank=rank, **fields) for rank, node in builders.items())
        if damaged := [answer["damaged"] for answer in await all_of(calls) if "damaged" in answer]:
            raise CorruptError("; ".join(damaged))
        return builders

    async def _work(
        self, held: Held, on_disks: Collection[int], over: ParitySet, found: Found, lost: list[int]
    ) -> tuple[dict[int, int], dict[str, Any]]:
        """The node that rebuilds each rank, and the fields of the message. Raises CheckpointError if a rank cannot be
        rebuilt."""
        best = held.best.items()
        shards = {rank: node for rank, node in best if rank not in on_disks and over.member_of(rank) is not None}
        parity = await self._verified(held.save, over, found)
        there = [i for i, ranks in enumerate(over.ranks) if all(rank in shards for rank in ranks)]
        for rank in lost:  # before any bytes are sent: all ranks or none
            over.stripes().rebuild(over.member_of(rank) or 0, *over.range_of(rank), there, parity)
        fields = {
            "save": held.save, "over": over, "shard_nodes": list(shards.items()),
            "parity_nodes": list(parity.items()), "headers": found.keepers,
        }  # fmt: skip
        return {rank: self._context.reader(rank, held.world_size) for rank in lost}, fields

    async def _verified(self, save: SaveId, over: ParitySet, found: Found) -> dict[int, int]:
        """By member, a node whose parity verifies."""

        async def check(index: int, nodes: list[int]) -> None:
            for node in nodes:
                if (await self._peers.call(node, "verify_parity", save=save, over=over, index=index))["good"]:
                    good[index] = node
                    return
                name = self._peers.nodes[node]
                self._listener.problem("parity does not verify", f"in the memory of {name}", save.step)

        good: dict[int, int] = {}
        await asyncio.gather(*(check(index, nodes) for index, nodes in found.holders.items()))
        return good
