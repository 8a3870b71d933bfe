"""The start of the job's runners, and another one where the scheduler has ended it for one node's sake.

Runners are one step. A node that dies, or freezes, between our look at the nodes and that step's start takes it down
everywhere; nothing has trained yet, so the others' runners are simply started again. Once an attempt begins nothing is
waited for any more: whatever has launched the runners is gone before it can end them under their workers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path

from launcher.clusters.cluster import Cluster
from launcher.disk_read import DiskRead
from launcher.supervisor.host import Host
from launcher.supervisor.links import Links, Notice
from launcher.supervisor.roster import Roster

log = logging.getLogger(__name__)

BLIND_TRIES = 3  # where nobody says which node it was
LATE_S = 120.0  # for a runner that has not come when an attempt begins
_LOOK_S = 1.0
_READ_TIMEOUT_S = 1.0  # the file system of the log may hang


class Launch:
    """Call order: begin; lost and tend as things happen; end. Then again(), where all runners were lost at once.

    Args:
        host: the supervisor.
        roster: its nodes.
        links: the runners' connections.
        cluster: starts the runners.
        job_dir: the job's folder, with the log of what starts them.

    Attributes:
        environment: the runners'.
    """

    def __init__(self, host: Host, roster: Roster, links: Links, cluster: Cluster, job_dir: Path) -> None:
        self._host = host
        self._roster = roster
        self._links = links
        self._cluster = cluster
        self.environment: Mapping[str, str] = {}
        self._is_under_way = False
        self._watching: asyncio.Task[None] | None = None
        self._has_ended = False
        self._blind = 0
        self._failed: dict[str, str] = {}  # the nodes on which the scheduler could start none
        self._log = DiskRead(lambda: cluster.not_launched(roster.nodes), job_dir / "log")

    async def begin(self) -> None:
        """Starts a runner on every node that is not out."""
        await self._start([node for node in self._roster.nodes if node not in self._roster.out])

    async def again(self) -> None:
        """Starts the runners that are absent: all were lost at once, and with them nothing of their nodes."""
        self._has_ended, self._blind = False, 0
        if self._roster.absent:
            await self._start(self._roster.absent)

    async def lost(self, node: str) -> bool:
        """Whether a runner that is lost is to come again, and is not to be held against its node."""
        if not self._is_under_way:
            return False
        if node in self._roster.absent:  # it was started again since
            return True
        if not await self._not_launched():
            return False
        self._has_ended = True
        self._roster.await_again(node)
        return True

    async def tend(self) -> None:
        """Starts the runners again where what launched them has ended; called whenever something was heard."""
        if not self._is_under_way or not self._has_ended:
            return
        self._has_ended = False
        failed = await self._not_launched()
        for node, reason in failed.items():
            self._host.put_out(node, reason)
        if failed:  # all others are being ended with it, whether we have heard that or not
            missing = [node for node in self._roster.nodes if node not in self._roster.out]
        else:
            missing = self._roster.absent
            self._blind += 1
        if not missing or self._blind > BLIND_TRIES:
            return
        for node in missing:
            self._roster.await_again(node)
            self._links.send(node, {"op": "leave", "forget": False})
        await self._cluster.release_runners()
        if not self._roster.can_suffice:
            return
        why = f"no process could be started on {', '.join(failed)}" if failed else "their start has failed"
        self._host.record("problem", what=f"runners are started again: {why}", detail="see log/srun-runners.log")
        await self._start(missing)

    async def end(self) -> None:
        """The runners that are there are to stay, whatever becomes of the others, which may come for another LATE_S."""
        if self._is_under_way and self._roster.absent:
            asyncio.get_running_loop().call_later(LATE_S, self._host.post, Notice(kind="late"))
        self._is_under_way = False
        if self._watching is not None:
            self._watching.cancel()
        await self._cluster.release_runners()

    async def _start(self, nodes: list[str]) -> None:
        if self._watching is not None:
            self._watching.cancel()
        self._is_under_way = True
        await self._cluster.start_runners(nodes, self.environment)
        self._failed = {}
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Until what launches them has ended, or says that it will."""
        launched = asyncio.ensure_future(self._cluster.runners_launched())
        try:
            while not launched.done() and not await self._not_launched():
                await asyncio.wait({launched}, timeout=_LOOK_S)
        finally:
            launched.cancel()
        log.warning("what was to start the runners has ended; still absent: %s", self._roster.absent or "none")
        self._has_ended = True
        self._host.post(Notice(kind="launch_ended"))

    async def _not_launched(self) -> dict[str, str]:
        with contextlib.suppress(TimeoutError):  # it then is what was known before
            self._failed = await self._log.newest(_READ_TIMEOUT_S)
        out = self._roster.out
        return {node: reason for node, reason in self._failed.items() if node not in out}
