"""One common step boundary at which all ranks of all nodes stop, agreed without a collective in the training loop.

A worker writes its boundary to its node's board, then looks at the gate. So once the gate is up, a worker seen at
boundary b waits at b + 1 at the latest: one more than the furthest seen on any node is a boundary that no rank can have
passed. The gate is up for a few milliseconds only. Nobody waits for a worker to be held there: it may be in a
collective with one that is held already.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ckpt.agent.context import Context
from ckpt.agent.rpc.peers import PeerError
from ckpt.memory.board import Board

_SETTLE_S = 0.002  # a worker that looked at the gate just before it rose has written its row by then
_RETRY_S = 2.0


class Stop:
    """Each node's part; the agent of node rank 0 also leads."""

    def __init__(self, context: Context, board: Board) -> None:
        self._board = board
        self._context = context
        self._peers = context.peers
        self._listener = context.listener
        self._deadlines = context.deadlines
        self._lead: asyncio.Task[None] | None = None
        self._boundary = 0  # agreed; 0 while none is
        self._peers.handle("ask_stop", self._on_stop)
        self._peers.handle("gate", self._on_gate)
        self._peers.handle("stop_at", self._on_stop_at)

    async def request(self) -> None:
        """A monitor asks for a stop; any number of them may, on any node."""
        if self._boundary:
            self._listener.to_monitors("stop_agreed", boundary=self._boundary)
            return
        try:
            await self._peers.call(0, "ask_stop", timeout_s=self._deadlines.answer_s)
        except PeerError as error:
            self._listener.problem("stop not agreed", str(error))

    @property
    def agreed(self) -> bool:
        """Whether the ranks stop at a boundary: the run goes on elsewhere or later."""
        return self._boundary > 0

    @property
    def boundary(self) -> int:
        """The boundary that the agents before us agreed on, or we; 0 while none is."""
        return self._board.stop_at

    def resume(self, boundary: int) -> None:
        """Goes on from what the agents before us agreed; 0: nothing, so nobody need wait for it.

        Args:
            boundary: the highest that any node has heard of.
        """
        if boundary:
            self._decide(boundary)
        else:
            self._board.clear_gate()

    def world_lost(self) -> None:
        """The other agents are lost: no boundary will be agreed, so nobody need wait for one."""
        if not self._boundary:
            self._board.clear_gate()

    async def _on_stop(self, source: int, message: dict[str, Any]) -> None:
        if self._lead is None or self._lead.done():
            self._lead = asyncio.ensure_future(self._agree())

    async def _agree(self) -> None:
        """Keeps at it until every node has heard the boundary: a node that has not holds its workers at the gate."""
        boundary = 0
        while True:
            try:
                if not boundary:
                    answers = await self._context.call_training("gate", timeout_s=self._deadlines.answer_s)
                    boundary = 1 + max(answer["boundary"] for answer in answers)
                await self._context.call_training("stop_at", timeout_s=self._deadlines.answer_s, boundary=boundary)
                return
            except PeerError as error:
                self._listener.problem("stop not agreed yet", str(error))
            if self._peers.broken:
                return
            await asyncio.sleep(_RETRY_S)

    async def _on_gate(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        self._board.set_gate(1)
        await asyncio.sleep(_SETTLE_S)
        return {"boundary": self._board.boundary()}

    async def _on_stop_at(self, source: int, message: dict[str, Any]) -> None:
        self._decide(message["boundary"])

    def _decide(self, boundary: int) -> None:
        self._boundary = boundary
        self._board.set_stop(boundary)
        self._listener.to_monitors("stop_agreed", boundary=boundary)
