"""The cluster inside a Slurm job: one long step has the runners, one step per attempt has the ckpt agents.

If srun has no PMIx plugin, mpirun starts the agents, and for each node an srun starts mpirun's daemon.

Every srun gets a list of nodes: after a node has died, SLURM_JOB_NODELIST is out of date and an srun without a list
fails. Both steps have --no-kill; without it the loss of one node would end them on all nodes. The exit code of an srun
with --no-kill carries no information.

A step continues without its srun. But three events cancel the step: srun alone is killed (its helper process then
cancels the step); srun gets SIGTERM; or a node crashes and is back within SlurmdTimeout ("Aborting, io error and
missing step on node"). All were seen on 22.05. So once the runners are connected, their srun is killed together with
its helper. Until then, and for the agents, srun outlives a supervisor that dies. If another node may have taken over,
srun is killed in the same way.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import ckpt.agent.process.launch as agent_launch
from holdfast.base.environment import Variable
from launcher.clusters.child_process import Adopted, ChildProcess
from launcher.clusters.mpirun import find_mpirun, remove_remains
from launcher.clusters.slurm.boosters import SlurmBoosters
from launcher.clusters.slurm.drained import in_words
from launcher.clusters.slurm.requeue import requeue
from launcher.clusters.slurm.srun_log import Launches
from launcher.core.exclusion import exclusion
from launcher.core.liveness import CUT_OFF_S, may_be_cut_off
from launcher.core.stop_reasons import StopReason
from launcher.env.containers import of_the_steps
from launcher.errors import LauncherError, TooFewNodes, UsageError
from launcher.job.jobfile import JobSpec
from launcher.job.run_id import slurm_run_id
from launcher.runner.memory import is_looked_after, memory_of, removal, remove_memory_dir
from launcher.scheduler import run_liveness
from launcher.scheduler.cluster import AgentsHandle, SeenAllocation
from slurm import JobEnvironment, Node, Slurm, SlurmError, Topology
from slurm.client import connection_error

log = logging.getLogger(__name__)

T = TypeVar("T")

_CLOSE_TIMEOUT_S = 2.0
_FORGET_TIMEOUT_S = 10.0
_CONNECTING_AT_ONCE = 64
_REGISTERING_S = 5.0  # slurmctld has its nodes register 3 s after its start; srun fails before
_REQUEUED_S = 600.0  # a slurmctld that was killed is back by then
_ASK_TIMES = 5
_SCRIPT_ENDS_S = 5.0
_MOST_NAMES_BYTES = 128_000  # Linux takes 131,072 (MAX_ARG_STRLEN): for the option's name and that of the variable too
_ASK_AGAIN_S = 0.3


class SlurmCluster:
    """The nodes of the Slurm job in which this process runs. Implements Cluster."""

    name = "slurm"
    listen_host = "0.0.0.0"
    can_requeue = True

    def __init__(
        self, spec: JobSpec, job_dir: Path, *, slurm: Slurm | None = None, env: Mapping[str, str] = os.environ
    ) -> None:
        job = JobEnvironment.from_env(env)
        if len(job.nodes) < spec.least_nodes:
            raise UsageError(
                f"Slurm job {job.job_id}: got {len(job.nodes)} nodes, expected {spec.least_nodes} "
                f"(nodes: {spec.nodes} + spares: {spec.spares}); submit it with --nodes={spec.most_nodes}"
            )
        if (names_bytes := len(",".join(job.nodes))) > _MOST_NAMES_BYTES:
            raise UsageError(
                f"Slurm job {job.job_id}: the names of its {len(job.nodes)} nodes take {names_bytes} bytes, expected "
                f"{_MOST_NAMES_BYTES} at most, as much as Linux passes to a program in one word; use fewer nodes"
            )
        self._job_id = job.job_id
        self._reference = job.reference
        self._in_container = of_the_steps(spec.slurm, job_dir)
        self._asked_for = spec.least_nodes
        self._needed = spec.sizes[-1]
        self._job_dir = job_dir
        self._slurm = slurm or Slurm()
        self._boosters = SlurmBoosters(spec, job_dir, job.job_id, self._slurm)
        self._grows = spec.most_boosters > 0
        self._out_of_use: Collection[str] = ()  # what the last requeue was to exclude
        self._runners: ChildProcess | None = None
        self._agents: ChildProcess | None = None
        self._launches: Launches | None = None  # reads the log of the srun that was started last
        self.run_id = slurm_run_id(job.cluster, job.job_id)
        self.allocation = str(job.job_id)
        self.nodes = job.nodes
        self.restart_count = job.restart_count
        self.host = socket.gethostname()
        self.node: str | None = job.node

    @cached_property
    def topology(self) -> Topology:
        """The switches of the nodes; empty if Slurm does not answer."""
        try:
            return self._slurm.topology()
        except SlurmError as error:
            log.warning("the network's switches are not known, all nodes count as equally near: %s", error)
            return Topology()

    @cached_property
    def _mpi_types(self) -> tuple[str, ...]:
        """The MPI plugin types of srun; only pmix if Slurm does not answer."""
        try:
            return self._slurm.mpi_types()
        except SlurmError as error:  # the runners' srun will fail too, and name the node
            log.warning("whether srun knows pmix is not known: %s", error)
            return ("pmix",)

    def require_mpi(self) -> None:
        if self._grows and (find_mpirun() is None or self._in_container):
            raise UsageError(
                f"elastic: got sizes above `nodes` {'in a container' if self._in_container else 'without an mpirun'}, "
                "expected mpirun outside of containers (pip install 'holdfast-hpc[mpi]'): it starts the checkpoint "
                "agents of several Slurm jobs"
            )
        types = self._mpi_types
        if "pmix" in types:
            return
        if (mpirun := find_mpirun()) is None or self._in_container:
            raise UsageError(
                f"srun --mpi=list: got {', '.join(types) or 'nothing'}, expected pmix, by which agents start; "
                "install Slurm's PMIx plugin, or outside of containers Open MPI (pip install 'holdfast-hpc[mpi]'), "
                "or leave `checkpoint` out of the job file"
            )
        log.warning("srun --mpi=list has no pmix (%s): %s starts the checkpoint agents", ", ".join(types), mpirun)

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        output = self._job_dir / "log" / "runner-%N.log"
        argv = self._srun(nodes, "--mpi=none", f"--output={output}", "--open-mode=append")
        argv += agent_launch.unmoved([*agent_launch.PYTHON, "-m", "launcher.runner"])
        log_path = self._job_dir / "log" / "srun-runners.log"
        self._launches = await asyncio.to_thread(Launches, log_path)
        self._runners = await ChildProcess.start(argv, environment, log_path, outlives_us=True)

    async def runners_launched(self) -> None:
        if self._runners is not None:
            await self._runners.wait()

    def not_launched(self, nodes: Collection[str]) -> dict[str, str]:
        return self._launches.failed(nodes) if self._launches is not None else {}

    async def release_runners(self) -> None:
        if self._runners is not None:
            await self._runners.kill()

    async def start_agents(
        self,
        nodes: list[str],
        environment: Mapping[str, str],
        log_path: Path,
        *,
        allocations: Mapping[str, str],
        holders: Sequence[str] = (),
    ) -> AgentsHandle:
        of_node = {node: allocations.get(node, self.allocation) for node in (*nodes, *holders)}
        job_ids = await asyncio.to_thread(self._job_ids, {*of_node.values()})
        jobs = {node: job_ids[allocation] for node, allocation in of_node.items()}
        ram_dir = str(memory_of(self.run_id))
        own = agent_launch.environment() | {Variable.RAM_DIR: ram_dir}
        tasks: list[str] = []
        if {*jobs.values()} == {self.allocation} and "pmix" in await asyncio.to_thread(lambda: self._mpi_types):
            argv = agent_launch.srun_world(self._job_id, [*jobs], *self._in_container)
            tasks = [node for node in self.nodes if node in jobs]  # Slurm's order, whatever --nodelist has
        else:
            environments = {job_id: self._of_allocation(number, job_id) for number, job_id in job_ids.items()}
            await asyncio.to_thread(remove_remains, memory_of(self.run_id))
            argv, more = agent_launch.mpirun_over_srun(find_mpirun() or "mpirun", jobs, environments, ram_dir)
            own |= more
        argv += agent_launch.command(from_template=True)
        own[Variable.RUN_ENDED] = json.dumps(run_liveness.command())
        self._launches = await asyncio.to_thread(Launches, log_path, tasks)
        self._agents = await ChildProcess.start(argv, {**environment, **own}, log_path, outlives_us=True)
        return self._agents

    async def ask_allocation(
        self, allocation: str, nodes: int, exclude: Collection[str], environment: Mapping[str, str]
    ) -> str:
        return await asyncio.to_thread(self._boosters.ask, allocation, nodes, exclude, environment)

    async def allocations(self, known: Collection[str]) -> dict[str, SeenAllocation]:
        return await asyncio.to_thread(self._boosters.seen, known)

    async def why_terminated_booster(self, allocation: str) -> str:
        return await asyncio.to_thread(self._boosters.why_terminated, allocation)

    async def end_allocation(self, allocation: str) -> None:
        await asyncio.to_thread(self._boosters.end, allocation)

    async def end_allocations(self) -> None:
        if not self._grows:
            return
        try:
            await asyncio.to_thread(self._insist, self._boosters.end_all)
        except SlurmError as error:
            log.error("boosters of job %s are not ended, and end when they find it gone: %s", self._reference, error)

    def adopt_agents(self) -> AgentsHandle:
        return Adopted()

    def let_go(self) -> None:
        for step in (self._runners, self._agents):
            if step is not None:
                step.let_go()

    def end_job(self) -> None:
        """The batch script ends the job when it sees the outcome. If its host is lost, scancel has to end the job."""
        try:
            deadline_s = time.monotonic() + _SCRIPT_ENDS_S
            while (
                job := self._insist(lambda: self._slurm.job(self._reference))
            ) is not None and job.state == "RUNNING":
                if job.batch_host == self.node:
                    return
                if time.monotonic() > deadline_s:
                    log.info(
                        "job %s has lost its batch script: cancelled, its outcome is in the folder", self._reference
                    )
                    self._insist(lambda: self._slurm.cancel(self._reference))
                    return
                time.sleep(_ASK_AGAIN_S)
        except SlurmError as error:
            log.error("job %s has ended, but Slurm still has it: %s; scancel it", self._reference, error)

    def unusable(self, nodes: Collection[str], allocations: Mapping[str, str]) -> dict[str, str]:
        deadline_s = time.monotonic() + CUT_OFF_S
        while True:
            found, unreached = self._look(nodes, allocations)
            if not may_be_cut_off(nodes, self.node, unreached) or time.monotonic() >= deadline_s:
                return found
            log.warning("this node may be cut off: it reaches none of %s; looking again", ", ".join(sorted(unreached)))
            time.sleep(_ASK_AGAIN_S)

    def _look(self, nodes: Collection[str], allocations: Mapping[str, str]) -> tuple[dict[str, str], set[str]]:
        """The nodes on which no process can be started, with the reasons, and those that this node does not reach."""
        unreached: set[str] = set()
        job = self._slurm.job(self._reference)
        if job is None:
            raise SlurmError(f"job {self._reference}: Slurm knows no such job")
        there = {*job.nodes}
        for job_id in self._boosters.job_ids({*allocations.values()} - {self.allocation}).values():
            booster = self._slurm.job(job_id)
            there |= {*booster.nodes} if booster is not None and booster.state == "RUNNING" else set()
        known = [node for node in self._slurm.nodes() if node.name in nodes]
        port = self._slurm.slurmd_port()

        # NOT_RESPONDING alone does not count: a slurmd that answers late once keeps this flag until slurmctld's next
        # ping, minutes later. UNKNOWN does not count either: nodes have it while slurmctld starts. So we connect to
        # slurmd ourselves.
        def why(node: Node) -> str | None:
            if node.name not in there or node.is_down:
                state = "+".join((node.state, *sorted(node.flags)))
                return f"Slurm finds it {state}: {node.reason or 'no reason given'}"
            if (error := connection_error(node.address, node.port or port)) is not None:
                if not isinstance(error, ConnectionRefusedError):
                    unreached.add(node.name)
                return f"its slurmd does not answer at {node.address}:{node.port or port}; see its log there"
            return None

        with ThreadPoolExecutor(_CONNECTING_AT_ONCE) as threads:
            reasons = zip(known, threads.map(why, known), strict=True)
            found = {node.name: reason for node, reason in reasons if reason is not None}
        found |= self.not_launched(nodes)  # the kernel accepts connections even for a stopped slurmd
        if not found and (up_s := self._slurm.controller_up_s()) is not None and up_s < _REGISTERING_S:
            # Partly allocated nodes are shown as MIXED even then. srun fails for them with "Memory required by task
            # is not available".
            raise SlurmError(f"slurmctld started {up_s:.0f} s ago, and creates no step before its nodes register")
        return found, unreached

    def drained(self, nodes: Collection[str]) -> dict[str, str]:
        found = self._slurm.drained(nodes) if nodes else {}
        return {name: in_words(node) for name, node in found.items() if name in nodes}

    def give_back(self, node: str) -> None:
        """A requeue asks for as many nodes as before (seen on 22.05)."""
        job = self._insist(lambda: self._slurm.job(self._reference))
        if job is None or node not in job.nodes:
            return
        if node == job.batch_host:
            raise LauncherError("the job's batch script runs there")
        left = [other for other in job.nodes if other != node]
        self._insist(lambda: self._slurm.shrink(self._reference, left))

    def requeue(self, exclude: Collection[str] = ()) -> None:
        self._out_of_use = exclude
        excluded = self._with_those_excluded(exclude) if exclude else []
        requeue(self._slurm, self._reference, self.restart_count)
        if excluded:
            # This must come after the requeue, because Slurm refuses it for a running job. It is early enough: the job
            # cannot start again before its old nodes have completed, which they do only after this process has ended.
            try:
                self._insist(lambda: self._slurm.exclude(self._reference, excluded))
            except SlurmError as error:  # if the job gets these nodes again, the supervisor does not use them
                log.warning("job %s is requeued, but may be given %s again: %s", self._reference, excluded, error)

    def await_requeue(self) -> None:
        """A slurmctld that is killed forgets a requeue that it has accepted and not saved yet.

        If the batch script ended then, the job would be COMPLETED.
        """
        deadline_s = time.monotonic() + _REQUEUED_S
        while time.monotonic() < deadline_s:
            try:
                job = self._slurm.job(self._reference)
                if job is None or job.state != "RUNNING" or job.restarts > self.restart_count:
                    return
                log.warning("job %s is still %s after its requeue: requeued again", self._reference, job.state)
                self.requeue(self._out_of_use)
            except (SlurmError, LauncherError) as error:
                log.warning("the requeue of job %s is not confirmed: %s", self._reference, error)
            time.sleep(_ASK_AGAIN_S)

    def why_terminated(self) -> StopReason:
        try:
            job = self._insist(lambda: self._slurm.job(self._reference))
        except SlurmError:
            return StopReason.PREEMPTED
        if job is not None:
            log.info("job %s is %s, reason %s, restarts %d", self._reference, job.state, job.reason, job.restarts)
        if job is None or job.restarts > self.restart_count:
            return StopReason.REQUEUE
        # A preempted job is RUNNING during its grace time. A job that is ending is COMPLETING, whatever the cause.
        if job.state == "RUNNING":
            return StopReason.PREEMPTED
        return StopReason.BATCH_SCRIPT_LOST if job.has_lost_its_script else StopReason.CANCEL

    def time_left_s(self) -> float | None:
        job = self._slurm.job(self._reference)
        return job.time_left_s if job is not None else None

    async def close(self) -> None:
        if self._runners is not None:
            await self._runners.end(_CLOSE_TIMEOUT_S)  # srun may wait for a dead node

    async def forget(self, nodes: Collection[str]) -> None:
        here, others = memory_of(self.run_id), [node for node in nodes if node != self.node]
        if len(others) < len(nodes) and not is_looked_after(here, os.environ):
            await asyncio.to_thread(remove_memory_dir, here)  # also where Slurm starts no step in this job any more
        if not others:
            return
        try:
            if reached := await asyncio.to_thread(self._usable, others):
                argv = [*self._srun(reached, "--mpi=none"), *removal(here)]
                step = await ChildProcess.start(argv, {}, self._job_dir / "log" / "srun-runners.log")
                await step.end(_FORGET_TIMEOUT_S)
        except (SlurmError, OSError) as error:
            log.warning("memory on %s is not freed: %s", ", ".join(sorted(others)), error)

    def _usable(self, nodes: Collection[str]) -> list[str]:
        """The nodes on which Slurm can start a step. A slurmctld that has just started is waited for."""
        deadline_s = time.monotonic() + _REGISTERING_S
        while True:
            try:
                unusable, _ = self._look(nodes, {})
                return [node for node in nodes if node not in unusable]
            except SlurmError:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(_ASK_AGAIN_S)

    def _with_those_excluded(self, nodes: Collection[str]) -> list[str]:
        """The nodes to exclude: the given ones, as far as the job can start without them, and those that the user has
        excluded. Empty if Slurm does not answer."""
        try:
            job = self._insist(lambda: self._slurm.job(self._reference))
            partition = self._slurm.partition(job.partition) if job is not None else None
        except SlurmError as error:
            log.warning("nodes that are out of use are not excluded from job %s: %s", self._reference, error)
            return []
        if job is None or partition is None:
            return []
        found = exclusion(
            nodes,
            before=job.excluded,
            there=partition.nodes,
            usable=self._responding,
            least=self._needed,
            wanted=self._asked_for,
        )
        if found.left < self._needed:
            raise TooFewNodes(
                f"partition {partition.name} has {found.left} nodes beside those out of use "
                f"({','.join(sorted(nodes))}) and those excluded, expected {self._needed}"
            )
        if found.kept:
            what = "job %s asks for %d nodes: %s, out of use, stay for spares"
            log.warning(what, self._reference, self._asked_for, list(found.kept))
        return sorted(found.nodes)

    def _responding(self) -> set[str]:
        """The nodes that can be given a job now; none if Slurm does not answer."""
        try:
            return {node.name for node in self._slurm.nodes() if node.responds and "DRAIN" not in node.flags}
        except SlurmError:
            return set()

    def _insist(self, ask: Callable[[], T]) -> T:
        """Repeats a request to Slurm. A SIGTERM to all processes of the job may also end a running scontrol."""
        for _ in range(_ASK_TIMES - 1):
            try:
                return ask()
            except SlurmError:
                time.sleep(_ASK_AGAIN_S)
        return ask()

    def _job_ids(self, allocations: Collection[str]) -> dict[str, str]:
        """The Slurm job of each allocation."""
        boosters = {*allocations} - {self.allocation}
        found = self._boosters.job_ids(boosters)
        if unknown := boosters - found.keys():
            raise LauncherError(f"Slurm knows no job of the boosters {', '.join(sorted(unknown))}")
        return found | {base: base for base in {*allocations} - boosters}

    def _of_allocation(self, allocation: str, job_id: str) -> dict[str, str]:
        """The variables of agents that differ between allocations."""
        if allocation == self.allocation:
            return {Variable.RAM_DIR: str(memory_of(self.run_id))}
        return {Variable.RAM_DIR: str(memory_of(self.run_id, job_id)), Variable.ALLOCATION: allocation}

    def _srun(self, nodes: list[str], *options: str) -> list[str]:
        return agent_launch.srun(self._job_id, nodes, *self._in_container, *options)
