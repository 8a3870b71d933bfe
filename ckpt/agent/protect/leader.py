"""Node rank 0 has shards that no memory holds made again from parity, where enough is left."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.rpc.peers import all_of
from ckpt.errors import CheckpointError, CorruptError
from ckpt.format.shard_record import SaveId
from ckpt.redundancy.parity_record import ParitySet


@dataclass(kw_only=True)
class Found:
    """The parity found over one set."""

    members: tuple[str, ...]  # node names when it was made
    holders: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  # nodes, by member

    @property
    def keepers(self) -> set[int]:
        """The nodes that hold any of it, and with it copies of shards' records."""
        return {node for nodes in self.holders.values() for node in nodes}


class RebuildLeader(Part):
    """Knows what parity there is, and leads its use."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._found: dict[SaveId, dict[ParitySet, Found]] = defaultdict(dict)

    def note(self, node: int, inventory: list[Any]) -> None:
        """What parity a node says it holds."""
        for save_json, over_json, index, members in inventory:
            sets = self._found[SaveId.from_json(save_json)]
            found = sets.setdefault(ParitySet.from_json(over_json), Found(members=tuple(members)))
            found.holders[index].append(node)

    async def prospect(
        self, save: SaveId, world_size: int, holders: dict[int, list[int]], on_disks: Collection[int]
    ) -> list[int]:
        """The nodes that keep the records of the lost shards; none unless enough verifies to make all of those again.

        Args: as `bring_back`, and changes nothing.
        """
        lost = {rank for rank in range(world_size) if not holders.get(rank)}
        keepers: set[int] = set()
        for over, found in self._found.get(save, {}).items():
            mine = [rank for rank in lost if over.member_of(rank) is not None]
            if mine:
                try:
                    await self._work(save, world_size, over, found, _in_memory(holders, on_disks), mine)
                except CheckpointError:
                    continue
                lost.difference_update(mine)
                keepers |= found.keepers
        return [] if lost else sorted(keepers)

    async def bring_back(
        self, save: SaveId, world_size: int, holders: dict[int, list[int]], on_disks: Collection[int]
    ) -> tuple[list[int], str, str]:
        """Has every lost shard made again that can be.

        Args:
            save: of which save.
            world_size: ranks that saved it.
            holders: by rank, the nodes whose shard verifies; the ranks made again are added.
            on_disks: ranks whose shard is in no memory: sums are made of memory only.

        Returns:
            The ranks made again, all verified; why not all were; and that once more where nothing else than bytes
            that do not match has kept them from it.
        """
        made: list[int] = []
        reasons: list[str] = []
        damaged: list[str] = []
        in_memory = _in_memory(holders, on_disks)
        for over, found in self._found.get(save, {}).items():
            lost = [rank for rank in range(world_size) if not holders.get(rank) and over.member_of(rank) is not None]
            if not lost:
                continue
            try:
                builders = await self._rebuild(save, world_size, over, found, in_memory, lost)
            except CheckpointError as error:
                reasons.append(f"no rebuild from the parity of {', '.join(found.members)}: {error}")
                damaged += reasons[-1:] if isinstance(error, CorruptError) else []
                continue
            for rank, node in builders.items():
                holders[rank] = [node]
            made += lost
        return made, "; ".join(reasons), "; ".join(damaged) if damaged == reasons else ""

    async def _rebuild(
        self, save: SaveId, world_size: int, over: ParitySet, found: Found, in_memory: dict[int, int], lost: list[int]
    ) -> dict[int, int]:
        """Which node has made which rank again.

        Raises:
            CorruptError: what was made does not match the record that outlived it, though all it is made of verifies.
            CheckpointError: one could not be made.
        """
        builders, fields = await self._work(save, world_size, over, found, in_memory, lost)
        calls = (self._peers.call(node, "rebuild", rank=rank, **fields) for rank, node in builders.items())
        answers = await all_of(calls)
        if damaged := [answer["damaged"] for answer in answers if "damaged" in answer]:
            raise CorruptError("; ".join(damaged))
        return builders

    async def _work(
        self, save: SaveId, world_size: int, over: ParitySet, found: Found, in_memory: dict[int, int], lost: list[int]
    ) -> tuple[dict[int, int], dict[str, Any]]:
        """Which node is to make which rank again, and what it is told. Raises CheckpointError when that cannot be."""
        shards = {rank: node for rank, node in in_memory.items() if over.member_of(rank) is not None}
        parity = await self._verified(save, over, found)
        there = [i for i, ranks in enumerate(over.ranks) if all(rank in shards for rank in ranks)]
        builders = {}
        for rank in lost:  # all or none: what cannot be is found out before anything is moved
            over.stripes().rebuild(over.member_of(rank) or 0, *over.range_of(rank), there, parity)
            builders[rank] = self._context.reader(rank, world_size)
        fields = {
            "save": save.to_json(), "over": over.to_json(), "shard_nodes": list(shards.items()),
            "parity_nodes": list(parity.items()), "headers": sorted(found.keepers),
        }  # fmt: skip
        return builders, fields

    async def _verified(self, save: SaveId, over: ParitySet, found: Found) -> dict[int, int]:
        """By member, a node whose parity verifies."""

        async def check(index: int, nodes: list[int]) -> None:
            for node in nodes:
                fields: dict[str, Any] = {"save": save.to_json(), "over": over.to_json(), "index": index}
                if (await self._peers.call(node, "verify_parity", **fields))["good"]:
                    good[index] = node
                    return
                name = self._peers.nodes[node]
                self._listener.problem("parity does not verify", f"in the memory of {name}", save.step)

        good: dict[int, int] = {}
        await asyncio.gather(*(check(index, nodes) for index, nodes in found.holders.items()))
        return good


def _in_memory(holders: dict[int, list[int]], on_disks: Collection[int]) -> dict[int, int]:
    """By rank, the node whose memory sums are made of."""
    return {rank: nodes[0] for rank, nodes in holders.items() if nodes and rank not in on_disks}
