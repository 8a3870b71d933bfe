"""The rows of a node's parity, made during a save.

The member that keeps the first row of a stripe makes all rows of that stripe. So each byte of a shard is read and sent
once, whatever the number of rows. Each row but the first is then sent to the member that keeps it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

from ckpt.agent.protect.gather_sum import Addend, Into, Sums, Taker, addends_of, pieces
from ckpt.agent.rpc.messages import serves
from ckpt.agent.rpc.peers import Peers
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError
from ckpt.format.shard_record import SaveId
from ckpt.redundancy.parity_record import ParitySet
from holdfast.base.deadlines import within

RowOfParity = tuple[SaveId, ParitySet, int]


class Rows:
    """One member's part in making its set's parity."""

    def __init__(self, peers: Peers, sums: Sums, members: Sequence[int], index: int) -> None:
        """
        Args:
            members: the set's nodes, in its order; empty on a node that is in no set.
        """
        self._peers = peers
        self._sums = sums
        self._nodes = dict(enumerate(members))
        self._index = index
        self._asked: dict[RowOfParity, tuple[Taker, asyncio.Future[None]]] = {}  # by row
        self._new_asked = asyncio.Condition()
        peers.serve(self)

    async def make(self, save: SaveId, over: ParitySet, ready: Collection[int], into: Into) -> None:
        """Makes this member's rows, without verification.

        Args:
            over: the set. Each member's shards are on its own node.
            ready: the members that have their parity already, and take no part.
            into: gives memory for bytes [start, stop) of the parity.

        Raises:
            PeerError: a member refused, or nothing arrived in time. Bytes may still arrive later, so the memory must
                not be reused.
        """
        async with Tasks() as tasks:
            others = [tasks.hold(self._row(save, over, row, ready, into)) for row in range(1, over.parity)]
            if over.stripes().encode(self._index, 0).nbytes:
                targets = await self._takers(save, over, ready)
                await self._sum(save, over, [0, *targets], into, [*targets.values()])
            await asyncio.gather(*others)

    async def _row(self, save: SaveId, over: ParitySet, row: int, ready: Collection[int], into: Into) -> None:
        """Gets a row beyond the first from the member that makes its stripe. If that member cannot, makes it here."""
        part, maker = over.stripes().encode(self._index, row), (self._index - row) % len(self._nodes)
        if not part.nbytes:
            return
        if maker not in ready:
            node, tag = self._nodes[maker], self._peers.new_tag()
            if (await self._peers.call(node, "row", save=save, over=over, row=row, tag=tag))["comes"]:
                mine = (into(part.at + start, part.at + stop) for start, stop in pieces(part.nbytes))
                await self._peers.take(node, tag, mine)
                return
        await self._sum(save, over, [row], into)

    async def _sum(
        self, save: SaveId, over: ParitySet, rows: Sequence[int], into: Into, others: Sequence[Taker] = ()
    ) -> None:
        """Makes rows of one stripe: the first for this member, the next ones for the targets in `others`."""
        stripes, stripe = over.stripes(), self._index - rows[0]
        parts = [stripes.encode((stripe + row) % len(self._nodes), row) for row in rows]
        homes = {rank: self._nodes[member] for member, ranks in enumerate(over.ranks) for rank in ranks}
        here = Addend(node=self._peers.rank, coefficients=(), parts=())
        addends = [*addends_of(parts, over, homes, self._nodes), here]
        at, nbytes = parts[0].at, parts[0].nbytes
        await self._sums.pull(save, over, addends, nbytes, lambda start, stop: into(at + start, at + stop), others)

    async def _takers(self, save: SaveId, over: ParitySet, ready: Collection[int]) -> dict[int, Taker]:
        """The members that have asked for the other rows of this member's stripe. Waits for all of them, for a while.

        A member that asks later makes its row itself.
        """
        rows = [row for row in range(1, over.parity) if (self._index + row) % len(self._nodes) not in ready]

        async def all_have() -> None:
            async with self._new_asked:
                await self._new_asked.wait_for(lambda: all((save, over, row) in self._asked for row in rows))

        with suppress(asyncio.TimeoutError):
            await within(self._peers.deadlines.rows_s, all_have())
        asked = {row: self._asked[save, over, row] for row in rows if (save, over, row) in self._asked}
        asked = {row: (target, comes) for row, (target, comes) in asked.items() if not comes.done()}
        for _, comes in asked.values():
            comes.set_result(None)
        return {row: target for row, (target, _) in asked.items()}

    @serves("row")
    async def _on_row(self, source: int, save: SaveId, over: ParitySet, row: int, tag: int) -> dict[str, Any]:
        """Answers whether this member will make and send the row: if it makes its own rows in time."""
        if not self._nodes:
            raise AgentError("this node is in no redundancy set")
        if row not in range(1, over.parity) or source != self._nodes[(self._index + row) % len(self._nodes)]:
            raise AgentError(f"row {row} is not that of node {self._peers.nodes[source]}")
        comes: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[save, over, row] = asked = ((source, tag), comes)
        async with self._new_asked:
            self._new_asked.notify_all()
        try:
            await within(self._peers.deadlines.rows_s, comes)
            return {"comes": True}
        except TimeoutError:
            return {"comes": False}
        finally:
            if self._asked.get((save, over, row)) is asked:
                del self._asked[save, over, row]
