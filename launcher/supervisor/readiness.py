"""What has to be there before an attempt can start: nodes, a folder to write its logs to, a scheduler that answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from launcher.clusters.cluster import Cluster
from launcher.supervisor.folder import until_written
from launcher.supervisor.host import Host
from launcher.supervisor.launch import Launch
from launcher.supervisor.roster import Roster
from slurm import SlurmError

log = logging.getLogger(__name__)

NODE_START_TIMEOUT_S = 120.0
FOLDER_TIMEOUT_S = 600.0  # a shared file system may be full, or fail over, for a while
SCHEDULER_TIMEOUT_S = 1800.0  # a controller is restarted, or its backup takes over
SCHEDULER_SETTLE_S = 5.0  # a controller that is back refuses steps until its nodes have registered (seen on 22.05)
_ASK_AGAIN_S = 1.0
_ALL_NODES_GRACE_S = 3.0  # once as many nodes have come as train, how long to wait for the others before choosing


class Readiness:
    """Waits for it. Every wait also ends when somebody asks the job to stop.

    Args:
        host: the supervisor.
        roster: its nodes.
        cluster: where it runs.
        job_dir: the job's folder.
        launch: starts the runners.
    """

    def __init__(self, host: Host, roster: Roster, cluster: Cluster, job_dir: Path, launch: Launch) -> None:
        self._host = host
        self._roster = roster
        self._cluster = cluster
        self._job_dir = job_dir
        self._launch = launch

    async def unusable(self) -> dict[str, str]:
        """Nodes that can be given no process, with the reason.

        A step that is to start on one of them is ended on all its nodes, --no-kill or not (seen on 22.05).
        """
        try:
            return await asyncio.to_thread(self._cluster.unusable, self._cluster.nodes)
        except SlurmError as error:
            log.warning("whether every node can be given a process is not known: %s", error)
            return {}

    async def nodes(self, *, patient: bool) -> None:
        """Waits until all nodes that may train are ready; if patient, a moment longer for the others, to choose.

        Runners whose start fails are started again meanwhile, and never after.
        """
        await self._until_ready(patient=patient)
        await self._launch.end()

    async def _until_ready(self, *, patient: bool) -> None:
        roster = self._roster
        begun_s = time.monotonic()
        full_s: float | None = None
        while not roster.is_complete and roster.can_suffice and not self._host.requests.any:
            now_s = time.monotonic()
            deadline_s = begun_s + NODE_START_TIMEOUT_S
            if roster.is_full:
                full_s = now_s if full_s is None else full_s
                deadline_s = full_s + (_ALL_NODES_GRACE_S if patient else 0.0)
            if now_s >= deadline_s:
                if not roster.is_full:
                    for node in roster.absent:
                        late = f"its runner did not report within {NODE_START_TIMEOUT_S:g} s; see log/runner-{node}.log"
                        self._host.put_out(node, late)
                break
            await self._host.next_notice(deadline_s - now_s)
            await self._launch.tend()

    async def backoff(self, delay_s: float, reason: str) -> None:
        """Waits before an attempt that follows others which gained nothing."""
        if delay_s <= 0 or self._host.requests.any:
            return
        self._host.record("backoff", seconds=delay_s, reason=reason)
        deadline_s = time.monotonic() + delay_s
        while (left_s := deadline_s - time.monotonic()) > 0 and not self._host.requests.any:
            await self._host.next_notice(left_s)

    async def folder(self, probe: Callable[[], None]) -> str | None:
        """Waits until an attempt's logs can be written, as no worker starts without; why not, after too long."""
        why = await until_written(probe, timeout_s=0.0, give_up=lambda: True)
        if why is None or self._host.requests.any:
            return None
        what = f"the job's folder cannot be written ({why}); no attempt starts before: make room in {self._job_dir}"
        self._host.record("problem", what=what)
        why = await self.written(probe)
        if why is None or self._host.requests.any:
            return None
        return f"the job's folder could not be written for {FOLDER_TIMEOUT_S:g} s ({why}); make room, submit again"

    async def written(self, write: Callable[[], None]) -> str | None:
        """Repeats a write until it succeeds; what stood against it, after too long."""
        return await until_written(write, timeout_s=FOLDER_TIMEOUT_S, give_up=lambda: self._host.requests.any)

    async def scheduler(self) -> str | None:
        """Waits until the scheduler can start processes again; what it last said, after too long."""
        deadline_s = time.monotonic() + SCHEDULER_TIMEOUT_S
        while not self._host.requests.any:
            try:
                await asyncio.to_thread(self._cluster.unusable, self._roster.ready)
                await asyncio.sleep(SCHEDULER_SETTLE_S)
                break
            except SlurmError as error:
                if time.monotonic() >= deadline_s:
                    return f"the scheduler did not answer for {SCHEDULER_TIMEOUT_S:g} s: {error}; submit the job again"
            await asyncio.sleep(_ASK_AGAIN_S)
        return None
