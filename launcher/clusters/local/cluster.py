"""The local cluster: each node is a session of processes on this machine, with its own memory directory."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import ckpt.agent.process.launch as agent_launch
from holdfast.base.environment import Variable
from holdfast.base.processes import end_all, pids_with_environment
from launcher.clusters.child_process import ChildProcess
from launcher.clusters.mpirun import find_mpirun
from launcher.core.inputs import AllocationState
from launcher.core.stop_reasons import StopReason
from launcher.errors import UsageError
from launcher.job import gpus
from launcher.job.jobfile import JobSpec
from launcher.job.run_id import local_run_id
from launcher.runner.memory import make_memory_dir, memory_dir, remove_memory_dir
from launcher.scheduler import run_liveness
from launcher.scheduler.cluster import AgentsHandle, SeenAllocation
from slurm import Topology

_CLOSE_TIMEOUT_S = 2.0
_KILL_NODE_TIMEOUT_S = 10.0


class LocalCluster:
    """A job's nodes on this machine: node0, node1, ... Implements Cluster.

    Raises:
        UsageError: this machine cannot run the job. See require_machine.
    """

    name = allocation = "local"
    restart_count = 0
    listen_host = host = "127.0.0.1"
    node: str | None = None
    can_requeue = False
    topology = Topology()

    def __init__(self, spec: JobSpec, job_dir: Path) -> None:
        require_machine(spec)
        self.run_id = local_run_id(job_dir)
        self.nodes = tuple(f"node{index}" for index in range(spec.most_nodes))
        self._job_dir = job_dir
        self._runners: dict[str, ChildProcess] = {}
        self._boosters: dict[str, list[str]] = {}  # the nodes of each booster
        self._mpi_dir = memory_dir(self.run_id) / ".mpi"

    def require_mpi(self) -> None:
        _mpirun()

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        for node in nodes:
            self._runners[node] = await self._start_runner(node, environment)

    async def runners_launched(self) -> None:
        """Never returns: the runners are this process' own children, without a launcher."""
        await asyncio.Event().wait()

    def not_launched(self, nodes: Collection[str]) -> dict[str, str]:
        return {}

    async def release_runners(self) -> None:
        """Does nothing: the runners have no launcher."""

    async def start_agents(
        self,
        nodes: list[str],
        environment: Mapping[str, str],
        log_path: Path,
        *,
        allocations: Mapping[str, str],
        holders: Sequence[str] = (),
    ) -> AgentsHandle:
        make_memory_dir(self._mpi_dir)
        world = (*nodes, *holders)
        argv = [_mpirun(), *agent_launch.mpirun_options(), "--host", f"localhost:{len(world)}"]
        for index, node in enumerate(world):
            own = [f"{name}={value}" for name, value in self._node_environment(node).items()]
            argv += [":"] * (index > 0) + ["-n", "1", "env", *own, *agent_launch.command(from_template=True)]
        mpi = agent_launch.environment(loopback=True) | _private_mpi(self._mpi_dir)
        own_environment = mpi | {
            Variable.RUN_ENDED: json.dumps(run_liveness.command()),
            Variable.RUN_PID: str(os.getpid()),
        }
        return await ChildProcess.start(argv, {**environment, **own_environment}, log_path)

    async def ask_allocation(
        self, allocation: str, nodes: int, exclude: Collection[str], environment: Mapping[str, str]
    ) -> str:
        """The nodes start at once. Node names are never reused, so that a new node finds no remains of an old one."""
        first = len(self._runners)
        self._boosters[allocation] = names = [f"node{first + index}" for index in range(nodes)]
        for node in names:
            self._runners[node] = await self._start_runner(node, {**environment, Variable.ALLOCATION: allocation})
        return f"local-{allocation}"

    async def allocations(self, known: Collection[str]) -> dict[str, SeenAllocation]:
        def seen(allocation: str) -> SeenAllocation:
            if any(runner.is_running for _, runner in self._of_booster(allocation)):
                return SeenAllocation(AllocationState.RUNNING)
            return SeenAllocation(AllocationState.ENDED, "its processes have ended")

        return {allocation: seen(allocation) for allocation in known}

    async def why_terminated_booster(self, allocation: str) -> str:
        return "ended by a signal"

    async def end_allocation(self, allocation: str) -> None:
        for node, runner in self._of_booster(allocation):
            await runner.end(_CLOSE_TIMEOUT_S)
            await end_all(partial(self._pids, node), _CLOSE_TIMEOUT_S)
            remove_memory_dir(memory_dir(self.run_id, node))

    def _of_booster(self, allocation: str) -> list[tuple[str, ChildProcess]]:
        """A booster's nodes whose runners have been started."""
        nodes = self._boosters.get(allocation, ())
        return [(node, self._runners[node]) for node in nodes if node in self._runners]

    async def end_allocations(self) -> None:
        """Does nothing: close() ends all processes."""

    def adopt_agents(self) -> AgentsHandle:
        raise UsageError("on the local cluster nodes end with their supervisor; start the job again in the same folder")

    def let_go(self) -> None:
        """Does nothing: there is no take-over on the local cluster."""

    def await_requeue(self) -> None:
        """Does nothing: there is no queue."""

    def end_job(self) -> None:
        """Does nothing: the job ends with this process."""

    def requeue(self, exclude: Collection[str] = ()) -> None:
        raise UsageError("the local cluster has no queue; start the job again in the same folder to go on")

    def unusable(self, nodes: Collection[str], allocations: Mapping[str, str]) -> dict[str, str]:
        return {}

    def drained(self, nodes: Collection[str]) -> dict[str, str]:
        return {}

    def give_back(self, node: str) -> None:
        """Does nothing: nobody else wants this machine's processes."""

    def time_left_s(self) -> float | None:
        return None

    def why_terminated(self) -> StopReason:
        return StopReason.REQUEUE

    async def close(self) -> None:
        await asyncio.gather(*(runner.end(_CLOSE_TIMEOUT_S) for runner in self._runners.values()))
        await end_all(lambda: pids_with_environment({Variable.RUN_ID: self.run_id}), _CLOSE_TIMEOUT_S)
        remove_memory_dir(self._mpi_dir)

    async def forget(self, nodes: Collection[str]) -> None:
        for node in (*self._runners, *self.nodes):  # including those of runners that were killed at their end
            remove_memory_dir(memory_dir(self.run_id, node))

    async def _start_runner(self, node: str, environment: Mapping[str, str]) -> ChildProcess:
        own = self._node_environment(node) | {Variable.SUPERVISOR_PID: str(os.getpid())}
        if visible := gpus.visible():
            own[Variable.MACHINE_GPUS] = ",".join(visible)
        log_path = self._job_dir / "log" / f"runner-{node}.log"
        argv = (*agent_launch.PYTHON, "-m", "launcher.runner")
        return await ChildProcess.start(argv, {**environment, **own}, log_path)

    def _pids(self, node: str) -> list[int]:
        return pids_with_environment({Variable.RUN_ID: self.run_id, Variable.NODE: node})

    def _node_environment(self, node: str) -> dict[str, str]:
        return {Variable.NODE: node, Variable.RAM_DIR: str(memory_dir(self.run_id, node))}


def kill_node(job_dir: Path, node: str) -> list[int]:
    """Simulate the loss of a node of a local job: SIGKILL all its processes and remove its memory.

    Args:
        job_dir: the job's folder.
        node: the node's name.

    Returns:
        The PIDs of the killed processes.
    """
    run_id = local_run_id(job_dir)

    def find() -> list[int]:
        return pids_with_environment({Variable.RUN_ID: run_id, Variable.NODE: node})

    pids = find()
    asyncio.run(end_all(find, _KILL_NODE_TIMEOUT_S))
    shutil.rmtree(memory_dir(run_id, node), ignore_errors=True)
    return pids


def require_machine(spec: JobSpec) -> None:
    """Check, before anything starts, that a job can run on this machine.

    Raises:
        UsageError: there is no mpirun for a job with checkpoints; or there are GPUs, but fewer than the nodes of the
            job's largest size need. A machine without GPUs runs the job on its CPU; see gpus.remark.
    """
    if spec.checkpoint is not None:
        _mpirun()
    largest, here = spec.sizes[0], len(gpus.visible())
    if here and (needed := largest * gpus.count(spec.gpus_per_node)) > here:
        raise UsageError(
            f"gpus_per_node: got {spec.gpus_per_node}: {largest} nodes on this machine need {needed} GPUs, and it has "
            f"{here}; run it on fewer nodes (-N), or on the CPU (--gpus-per-node 0)"
        )


def _mpirun() -> str:
    if (mpirun := find_mpirun()) is None:
        raise UsageError(
            "mpirun: not found; checkpoints on the local cluster need one: pip install 'holdfast-hpc[mpi]'"
        )
    return mpirun


def _private_mpi(session_dir: Path) -> dict[str, str]:
    """Variables for Open MPI: files go to the given directory, and mpirun uses no scheduler to find nodes."""
    return {
        "TMPDIR": str(session_dir),
        "PRTE_MCA_prte_tmpdir_base": str(session_dir),
        "PRTE_MCA_ras": "^slurm",
        "PRTE_MCA_plm": "ssh",
    }
