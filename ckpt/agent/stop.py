"""Agrees on one step boundary at which all ranks of all nodes stop, or from which on they save at another cadence.

No collective is needed in the training loop.

`ckpt.memory.board` has the argument why no rank can have passed that boundary. The gate is up for a few milliseconds
only. No agent waits until a worker is held at the gate, because the worker may be in a collective with another that is.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.rpc.messages import serves
from ckpt.agent.rpc.peers import PeerError
from ckpt.memory.board import Board

_SETTLE_S = 0.002  # a worker that read the gate just before it rose has written its row by then
_RETRY_S = 2.0


class Stop(Part):
    """Each node's part in the agreement. The agent of node rank 0 also leads it."""

    def __init__(self, context: Context, board: Board) -> None:
        super().__init__(context)
        self._board = board
        self._lead: asyncio.Task[None] | None = None
        self._boundary = 0  # the agreed boundary; 0 if there is none
        self._one_at_a_time = asyncio.Lock()  # agreements: each lowers the gate at its end

    async def request(self) -> None:
        """Handles a monitor's request to stop. Any number of monitors on any node may send one."""
        if self._boundary:
            self._listener.to_monitors("stop_agreed", boundary=self._boundary)
            return
        try:
            await self._peers.call(0, "ask_stop")
        except PeerError as error:
            self._listener.problem("stop not agreed", str(error))

    @property
    def agreed(self) -> bool:
        """Whether a boundary is agreed. The run then continues elsewhere or later."""
        return self._boundary > 0

    @property
    def boundary(self) -> int:
        """The boundary that these agents or earlier ones agreed on; 0 if there is none."""
        return self._board.stop_at

    def resume(self, boundary: int) -> None:
        """Continues from the agreement of earlier agents.

        Args:
            boundary: the highest boundary that any node knows; 0: no worker need wait for a decision.
        """
        if boundary:
            self._decide(boundary)
        else:
            self._board.clear_gate()

    def world_lost(self) -> None:
        """After the loss of the other agents no boundary can be agreed, so workers stop waiting for one."""
        if not self._boundary:
            self._board.clear_gate()

    @serves("ask_stop")
    async def _on_ask_stop(self, source: int) -> None:
        if self._lead is None or self._lead.done():
            self._lead = asyncio.ensure_future(self._agree())

    async def _agree(self) -> None:
        await self._agree_on("stop", "stop_at")

    async def save_every(self, steps: int, before: int) -> bool:
        """Has all ranks save every `steps` steps, from a boundary on that none has passed; for the leader.

        Args:
            before: the number of steps up to that boundary.

        Returns:
            False if the ranks stop, or the other agents are lost.
        """
        return not self._boundary and await self._agree_on("cadence", "save_every", steps=steps, before=before)

    async def _agree_on(self, what: str, op: str, **fields: int) -> bool:
        """Repeats until every node knows the boundary. A node that does not know it holds its workers at the gate."""
        boundary = 0
        async with self._one_at_a_time:
            while True:
                try:
                    if not boundary:
                        answers = await self._context.call_training("gate")
                        boundary = 1 + max(answer["boundary"] for answer in answers)
                    await self._context.call_training(op, boundary=boundary, **fields)
                    return True
                except PeerError as error:
                    self._listener.problem(f"{what} not agreed yet", str(error))
                if self._peers.broken:
                    return False
                await asyncio.sleep(_RETRY_S)

    @serves("save_every")
    async def _on_save_every(self, source: int, boundary: int, steps: int, before: int) -> None:
        self._board.set_every_steps(steps, before=before, boundary=boundary)

    @serves("gate")
    async def _on_gate(self, source: int) -> dict[str, Any]:
        self._board.set_gate(1)
        await asyncio.sleep(_SETTLE_S)
        return {"boundary": self._board.boundary()}

    @serves("stop_at")
    async def _on_stop_at(self, source: int, boundary: int) -> None:
        self._decide(boundary)

    def _decide(self, boundary: int) -> None:
        self._boundary = boundary
        self._board.set_stop(boundary)
        self._listener.to_monitors("stop_agreed", boundary=boundary)
