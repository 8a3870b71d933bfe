"""The committed saves that this node keeps, and the shards that it has. All parts of the agent share them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.rpc.messages import serves
from ckpt.agent.shards.held import HeldShard, ShardKind
from ckpt.format.memory_names import OWN, kind_of
from ckpt.format.shard_record import SaveId


@dataclass(kw_only=True, eq=False)
class Pin:
    """A committed save on its way to lower tiers."""

    save: SaveId
    names: dict[int, str]  # names of its shards, by local rank
    tiers: set[str]  # tiers that it has not reached yet


class NodeSaves(Part):
    """The newest save, and those that are on their way to lower tiers. Their memory stays until then."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.newest: SaveId | None = None  # committed or restored; kept until the next commit
        self.nothing_was_lost = False  # every shard of the restored save was on its rank's node
        self.pinned: dict[SaveId, Pin] = {}
        self.changed = asyncio.Condition()  # notified when the outcome of a save or of a flush is known

    def restored(self, save: SaveId | None, *, nothing_was_lost: bool) -> None:
        """The agents have agreed to restore this save, or none."""
        self.newest, self.nothing_was_lost = save, nothing_was_lost

    def adopted(self, save: SaveId | None) -> None:
        """Agents that replace lost ones have agreed to continue from this save, or have found none."""
        self.newest = save

    def committed(self, save: SaveId, names: dict[int, str], tiers: Collection[str]) -> None:
        """All nodes have protected a save. `names`: of its shards here, by local rank."""
        self.newest = save
        if tiers:
            self.pinned[save] = Pin(save=save, names=names, tiers=set(tiers))

    def pin_newest(self, tiers: Collection[str]) -> int | None:
        """Keeps this node's shards of the newest save until they have reached these tiers. Returns their bytes.

        A copy is enough, for nodes that have changed places. If a shard is missing, none is pinned, and the result is
        None; a flush then fails.
        """
        if self.newest is None or not tiers:
            return None
        names: dict[int, str] = {}
        for local_rank, rank in enumerate(self._context.ranks(self._place.node_rank)):
            found = self._memory_store.find(self.newest, rank)
            if not found or self._memory_store.record(found[0]).world_size != self._place.world_size:
                return None
            names[local_rank] = found[0]
        self.pinned[self.newest] = Pin(save=self.newest, names=names, tiers=set(tiers))
        return sum(self._memory_store.record(name).nbytes for name in names.values())

    async def flushed(self, save: SaveId, tier: str, reached: bool, **size_and_time: Any) -> None:
        """The save has reached a lower tier, or will not. After the last tier its slots may be reused."""
        if (pin := self.pinned.get(save)) is not None:
            pin.tiers.discard(tier)
            if not pin.tiers:
                del self.pinned[save]
        outcome = {"reached": reached, **(size_and_time if reached else {})}
        pinned = any(other.step == save.step for other in self.pinned)  # maybe that of another line
        self._listener.to_workers("flushed", step=save.step, tier=tier, pinned=pinned, **outcome)
        await self.notify()

    async def world_lost(self) -> None:
        """The other agents are lost, so no flush can be committed any more."""
        for save, pin in list(self.pinned.items()):
            for tier in list(pin.tiers):
                await self.flushed(save, tier, reached=False)

    async def notify(self) -> None:
        """Wakes those who wait for `changed`."""
        async with self.changed:
            self.changed.notify_all()

    @property
    def kept(self) -> set[SaveId]:
        """The saves whose shards and redundancy stay."""
        return {*self.pinned, *([self.newest] if self.newest else [])}

    @property
    def of_this_attempt(self) -> SaveId | None:
        """The newest save that this attempt has committed."""
        newest, place = self.newest, self._place
        is_ours = newest is not None and (newest.run_id, newest.attempt) == (place.run_id, place.attempt)
        return newest if is_ours else None

    def held(self) -> list[HeldShard]:
        """The shards in this node's memory and on its disk."""
        in_memory = (
            (record, ShardKind.OWN if kind_of(name) == OWN else ShardKind.COPY)
            for name, record in self._memory_store.shards().items()
        )
        found = [HeldShard(record.save, record.world_size, record.rank, kind) for record, kind in in_memory]
        return [*found, *(HeldShard(*row, ShardKind.DISK) for row in self._node_disk.rows())]

    @serves("pin_newest")
    async def _on_pin_newest(self, source: int, tiers: list[str]) -> dict[str, Any]:
        return {"pinned_bytes": self.pin_newest(tiers)}
