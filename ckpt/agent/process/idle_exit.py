"""How agents end that nobody tells to: a program has started them, and they outlive its last process by a moment.

All leave together. A node whose processes have gone may still hold copies for saves that others finish, and a process
that is killed takes no leave; what shows in any case is that the kernel closes its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.rpc.peers import PeerError

_POLL_S = 0.2

log = logging.getLogger(__name__)


class IdleExit(Part):
    """Each node's part; the agent of node rank 0 also knows who is done."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._nodes = context.place.nodes
        self._unused: set[int] = set()  # nodes whose processes have gone, as node rank 0 has heard
        self._told: set[int] = set()  # nodes that know that all have

    async def run(self) -> None:
        """Returns when this agent is to end: no process of the program is left, on any node that can be reached."""
        if not await self._poll(lambda: self._listener.used, self._deadlines.use_s):
            log.warning("no process has connected within %g s: leaving", self._deadlines.use_s)
        await self._poll(lambda: not self._listener.clients, None)
        try:
            while not (await self._peers.call(0, "unused"))["leave"]:
                await asyncio.sleep(_POLL_S)
        except PeerError as error:
            log.warning("leaving without the others: %s", error)
            return
        if self._peers.rank == 0 and not await self._poll(self._all_told, self._deadlines.leave_s):
            late = ", ".join(node for rank, node in enumerate(self._nodes) if rank not in self._told)
            log.warning("agents of %s have not asked again within %g s: leaving", late, self._deadlines.leave_s)

    async def _on_unused(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        self._unused.add(source)
        leave = len(self._unused) == len(self._nodes)
        if leave:
            self._told.add(source)
        return {"leave": leave}

    def _all_told(self) -> bool:
        return len(self._told) == len(self._nodes)

    async def _poll(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Waits for a condition; False when it does not come about in time (None: waits for ever)."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not condition():
            if deadline is not None and loop.time() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True
