"""The rows of a node's parity, made while a save gets its redundancy.

All rows of a stripe are made at once on the member that keeps the first: each byte of a shard is read and sent once,
whatever the number of rows, and each row but the first once more, to the member that keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from ckpt.agent.protect.gather_sum import Addend, Room, Sums, Target, addends_of, pieces
from ckpt.agent.rpc.peers import Peers
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError
from ckpt.format.shard_record import SaveId
from ckpt.redundancy.parity_record import ParitySet
from ckpt.timeouts import within

Row = tuple[SaveId, ParitySet, int]


class Rows:
    """One member's part in the making of its set's parity."""

    def __init__(self, peers: Peers, sums: Sums, members: Sequence[int], index: int) -> None:
        """
        Args:
            peers: the agents.
            sums: this node's.
            members: the set's nodes in its order; empty on a node that is in no set.
            index: of this node among them.
        """
        self._peers = peers
        self._sums = sums
        self._nodes = dict(enumerate(members))
        self._index = index
        self._asked: dict[Row, tuple[Target, asyncio.Future[None]]] = {}  # who waits to be told that it comes
        self._come = asyncio.Condition()
        peers.serve(self)

    async def make(self, save: SaveId, over: ParitySet, ready: Collection[int], into: Room) -> None:
        """Makes this member's rows; not verified.

        Args:
            save: of which save.
            over: what is under parity; each member's shards lie on its own node.
            ready: the members that have their parity, and take no part.
            into: memory for bytes [start, stop) of the parity.

        Raises:
            PeerError: a member refused, or nothing arrived in time. Bytes may yet arrive: do not reuse the memory.
        """
        async with Tasks() as tasks:
            others = [tasks.hold(self._row(save, over, row, ready, into)) for row in range(1, over.parity)]
            if over.stripes().encode(self._index, 0).nbytes:
                targets = await self._those_who_ask(save, over, ready)
                await self._sum(save, over, [0, *targets], into, [*targets.values()])
            await asyncio.gather(*others)

    async def _row(self, save: SaveId, over: ParitySet, row: int, ready: Collection[int], into: Room) -> None:
        """A row beyond the first: from the member that makes it with its own, else made here."""
        part, maker = over.stripes().encode(self._index, row), (self._index - row) % len(self._nodes)
        if not part.nbytes:
            return
        if maker not in ready:
            node, tag = self._nodes[maker], self._peers.new_tag()
            fields: dict[str, Any] = {"save": save.to_json(), "over": over.to_json(), "row": row, "tag": tag}
            if (await self._peers.call(node, "row", **fields))["comes"]:
                mine = (into(part.at + start, part.at + stop) for start, stop in pieces(part.nbytes))
                await self._peers.take(node, tag, mine)
                return
        await self._sum(save, over, [row], into)

    async def _sum(
        self, save: SaveId, over: ParitySet, rows: Sequence[int], into: Room, others: Sequence[Target] = ()
    ) -> None:
        """Makes rows of one stripe: the first for this member."""
        stripes, stripe = over.stripes(), self._index - rows[0]
        parts = [stripes.encode((stripe + row) % len(self._nodes), row) for row in rows]
        homes = {rank: self._nodes[member] for member, ranks in enumerate(over.ranks) for rank in ranks}
        here = Addend(node=self._peers.rank, coefficients=(), parts=())
        addends = [*addends_of(parts, over, homes, self._nodes), here]
        at, nbytes = parts[0].at, parts[0].nbytes
        await self._sums.pull(
            save, over.to_json(), addends, nbytes, lambda start, stop: into(at + start, at + stop), others
        )

    async def _those_who_ask(self, save: SaveId, over: ParitySet, ready: Collection[int]) -> dict[int, Target]:
        """Who takes which other row of this member's stripe: waits for all that may, for a while."""
        rows = [row for row in range(1, over.parity) if (self._index + row) % len(self._nodes) not in ready]

        async def all_have() -> None:
            async with self._come:
                await self._come.wait_for(lambda: all((save, over, row) in self._asked for row in rows))

        with suppress(asyncio.TimeoutError):  # who has not asked by then makes its own
            await within(self._peers.deadlines.rows_s, all_have())
        targets = {}
        for row in rows:
            target, told = self._asked.get((save, over, row), (None, None))
            if target and told and not told.done():
                told.set_result(None)
                targets[row] = target
        return targets

    async def _on_row(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """Says whether the row will come: if this member makes its own in time."""
        save, over, row = SaveId.from_json(message["save"]), ParitySet.from_json(message["over"]), message["row"]
        if not self._nodes:
            raise AgentError("this node is in no redundancy set")
        if row not in range(1, over.parity) or source != self._nodes[(self._index + row) % len(self._nodes)]:
            raise AgentError(f"row {row!r:.20} is not that of node {self._peers.nodes[source]}")
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[save, over, row] = asked = ((source, message["tag"]), told)
        async with self._come:
            self._come.notify_all()
        try:
            await within(self._peers.deadlines.rows_s, told)
            return {"comes": True}
        except asyncio.TimeoutError:
            return {"comes": False}
        finally:
            if self._asked.get((save, over, row)) is asked:
                del self._asked[save, over, row]
