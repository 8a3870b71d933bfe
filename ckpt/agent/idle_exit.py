"""Agents started by an MPI program exit together once none of its processes is connected on any node.

They exit together because a node without processes may still hold copies for saves that others complete. A killed
process sends no message, so an agent relies on the kernel to close the connection.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

from ckpt.agent.context import Context, Part
from ckpt.agent.rpc.messages import serves
from ckpt.agent.rpc.peers import PeerError

_POLL_S = 0.2

log = logging.getLogger(__name__)


class IdleExit(Part):
    """Each node's part. The agent of node rank 0 also collects which nodes are unused."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._nodes = context.place.nodes
        self._unused: set[int] = set()  # on node rank 0: nodes without a connected process
        self._leaving: set[int] = set()  # on node rank 0: nodes that know that all nodes are unused

    async def run(self) -> None:
        """Returns when this agent is to exit: no process is connected to any agent that can be reached."""
        if not await self._poll(lambda: self._listener.used, self._deadlines.use_s):
            log.warning("no process has connected within %g s: leaving", self._deadlines.use_s)
        await self._poll(lambda: not self._listener.clients, math.inf)
        try:
            while not (await self._peers.call(0, "unused"))["leave"]:
                await asyncio.sleep(_POLL_S)
        except PeerError as error:
            log.warning("leaving without the others: %s", error)
            return
        all_leave = lambda: len(self._leaving) == len(self._nodes)  # noqa: E731
        if self._peers.rank == 0 and not await self._poll(all_leave, self._deadlines.leave_s):
            late = ", ".join(node for rank, node in enumerate(self._nodes) if rank not in self._leaving)
            log.warning("agents of %s have not asked again within %g s: leaving", late, self._deadlines.leave_s)

    @serves("unused")
    async def _on_unused(self, source: int) -> dict[str, Any]:
        self._unused.add(source)
        if leave := len(self._unused) == len(self._nodes):
            self._leaving.add(source)
        return {"leave": leave}

    async def _poll(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Waits for a condition. Returns whether it was met within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True
