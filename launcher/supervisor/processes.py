"""Starts and ends the runners, and the checkpoint agents of each attempt, one command after the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path

from holdfast.base.disk_read import DiskRead
from holdfast.base.environment import Variable
from launcher.core.commands import AdoptAgents, StartAgents
from launcher.core.inputs import AgentsEnded, Input, LaunchEnded
from launcher.env import failure_domains
from launcher.errors import LauncherError
from launcher.job.jobfile import JobSpec
from launcher.runner.variables import attempt_environment
from launcher.scheduler.cluster import AgentsHandle, Cluster
from slurm import SlurmError

log = logging.getLogger(__name__)

_LOOK_S = 1.0
_LAUNCH_AGAIN_S = 10.0
_READ_TIMEOUT_S = 1.0  # the file system of the log may hang

Work = Callable[[], Awaitable[None]]


class Processes:
    """Performs the core's commands about processes, in their order and without blocking the core.

    Args:
        spec: the job.
        job_dir: its folder.
        cluster: starts and ends the processes.
        put: gives an input to the core.
        spawn: runs a coroutine as a task of the supervisor. If the task fails, the job ends.

    Attributes:
        environment: the environment of the runners.
    """

    def __init__(
        self,
        spec: JobSpec,
        job_dir: Path,
        cluster: Cluster,
        put: Callable[[Input], None],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        self._spec = spec
        self._job_dir = job_dir
        self._cluster = cluster
        self._put = put
        self._spawn = spawn
        self.environment: Mapping[str, str] = {}
        self._orders: asyncio.Queue[Work | None] = asyncio.Queue()
        self._performing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._handle: AgentsHandle | None = None
        self._not_launched: dict[str, str] = {}
        self._log = DiskRead(lambda: cluster.not_launched(cluster.nodes), job_dir / "log")

    def start_runners(self, nodes: tuple[str, ...]) -> None:
        async def work() -> None:
            self._stop_watching()
            self._not_launched = {}
            try:
                await self._cluster.start_runners(list(nodes), self.environment)
                self._watching = self._spawn(self._watch_launch())
            except OSError as error:
                log.warning("the runners cannot be started: %s", error)
                self._watching = self._spawn(self._report_no_launch())

        self._order(work)

    def release_runners(self) -> None:
        """End the launcher of the runners (srun), so that it cannot end the runners."""

        async def work() -> None:
            self._stop_watching()
            await self._cluster.release_runners()

        self._order(work)

    def ask_launch(self) -> None:
        """Ask which nodes the launcher of the runners has not reached so far."""

        async def work() -> None:
            self._put(LaunchEnded(failed=await self._failed(), has_ended=False))

        self._order(work)

    def start_agents(self, command: StartAgents) -> None:
        async def work() -> None:
            number, nodes = command.attempt, list(command.nodes)
            switches = failure_domains.switches_of(self._cluster.topology, nodes)
            own = attempt_environment(self._spec, self._cluster.run_id, self._job_dir, number, nodes, switches)
            environment = {**self._spec.env, **own}  # agents need the workers' credentials and proxies for storage
            environment |= {Variable.ROLE: "agent", Variable.RESTART_COUNT: str(self._cluster.restart_count)}
            if command.holders:
                environment[Variable.HOLDERS] = ",".join(command.holders)
            if command.generation:
                environment[Variable.GENERATION] = str(command.generation)
            log_path = self._job_dir / "log" / f"attempt-{number}" / "agents.log"
            try:
                handle = await self._cluster.start_agents(
                    nodes, environment, log_path, allocations=command.allocations, holders=command.holders
                )
                self._follow(handle, number, command.generation)
            except (LauncherError, SlurmError, OSError) as error:
                self._put(AgentsEnded(attempt=number, generation=command.generation, reason=str(error)))

        self._order(work)

    def adopt_agents(self, command: AdoptAgents) -> None:
        async def work() -> None:
            self._follow(self._cluster.adopt_agents(), command.attempt, command.generation)

        self._order(work)

    def kill_agents(self) -> None:
        """End the launcher of the agents. The runners end agents that still run on their nodes."""

        async def work() -> None:
            if self._handle is not None:
                await self._handle.kill()
                await self._handle.wait()

        self._order(work)

    async def close(self) -> None:
        """Perform the remaining commands, unless one has failed."""
        if self._performing is not None:
            self._orders.put_nowait(None)
            await asyncio.wait({self._performing})
        self._stop_watching()

    def _order(self, work: Work) -> None:
        self._orders.put_nowait(work)
        if self._performing is None:
            self._performing = self._spawn(self._perform())

    async def _perform(self) -> None:
        while (work := await self._orders.get()) is not None:
            await work()

    def _follow(self, handle: AgentsHandle, attempt: int, generation: int) -> None:
        async def wait() -> None:
            await handle.wait()
            self._put(AgentsEnded(attempt=attempt, generation=generation))

        self._handle = handle
        self._spawn(wait())

    async def _watch_launch(self) -> None:
        """Wait until the launcher of the runners has ended, or has logged a node that it cannot reach."""
        launched = asyncio.ensure_future(self._cluster.runners_launched())
        try:
            while not launched.done() and not (failed := await self._failed()):
                await asyncio.wait({launched}, timeout=_LOOK_S)
        finally:
            launched.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await launched
        failed = await self._failed()
        log.warning("the launch of the runners has ended; nodes not reached: %s", failed or "none named")
        self._put(LaunchEnded(failed=failed))

    async def _report_no_launch(self) -> None:
        """Report a launch that could not begin, after a while: what it lacked may be there when it is tried again."""
        await asyncio.sleep(_LAUNCH_AGAIN_S)
        self._put(LaunchEnded())

    async def _failed(self) -> dict[str, str]:
        """Nodes that the launcher of the runners could not reach; if its log cannot be read, those known before."""
        with contextlib.suppress(TimeoutError):
            self._not_launched = await self._log.newest(_READ_TIMEOUT_S)
        return self._not_launched

    def _stop_watching(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
