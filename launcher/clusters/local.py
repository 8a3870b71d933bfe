"""The embedded local cluster: a node is a session of processes on this machine, with a memory directory of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import ckpt.agent.process.launch as agent_launch
from launcher.clusters import ended
from launcher.clusters.cluster import AgentsHandle
from launcher.clusters.mpirun import find_mpirun
from launcher.clusters.run_id import local_run_id
from launcher.clusters.spawned import Spawned
from launcher.errors import UsageError
from launcher.jobfile import JobSpec
from launcher.runner.memory import make_memory_dir, memory_dir, remove_memory_dir
from launcher.runner.processes import end_all, pids_with_environment
from slurm import Topology

_CLOSE_TIMEOUT_S = 2.0
_KILL_NODE_TIMEOUT_S = 10.0


class LocalCluster:
    """A job's nodes on this machine: node0, node1, ... A Cluster.

    Raises:
        UsageError: the job keeps checkpoints, and there is no mpirun to start their agents.
    """

    name = "local"
    restart_count = 0
    listen_host = host = "127.0.0.1"
    node: str | None = None
    can_requeue = False
    topology = Topology()

    def __init__(self, spec: JobSpec, job_dir: Path) -> None:
        require_mpirun(spec)
        self.run_id = local_run_id(job_dir)
        self.nodes = tuple(f"node{index}" for index in range(spec.most_nodes))
        self._job_dir = job_dir
        self._runners: list[Spawned] = []
        self._mpi_dir = memory_dir(self.run_id) / ".mpi"

    def require_mpi(self) -> None:
        _mpirun()

    async def start_runners(self, nodes: list[str], environment: Mapping[str, str]) -> None:
        for node in nodes:
            own = self._node_environment(node) | {"HOLDFAST_SUPERVISOR_PID": str(os.getpid())}
            log_path = self._job_dir / "log" / f"runner-{node}.log"
            argv = (*agent_launch.PYTHON, "-m", "launcher.runner")
            self._runners.append(await Spawned.start(argv, {**environment, **own}, log_path))

    async def runners_launched(self) -> None:
        """They are children of ours: nothing else stands between."""
        await asyncio.Event().wait()

    def not_launched(self, nodes: Collection[str]) -> dict[str, str]:
        return {}

    async def release_runners(self) -> None:
        """Nothing acts on the nodes here but we."""

    async def start_agents(self, nodes: list[str], environment: Mapping[str, str], log_path: Path) -> AgentsHandle:
        make_memory_dir(self._mpi_dir)
        argv = [_mpirun(), *agent_launch.mpirun_options(), "--host", f"localhost:{len(nodes)}"]
        for index, node in enumerate(nodes):
            own = [f"{name}={value}" for name, value in self._node_environment(node).items()]
            argv += [":"] * (index > 0) + ["-n", "1", "env", *own, *agent_launch.command(from_template=True)]
        mpi = agent_launch.environment(loopback=True) | _private_mpi(self._mpi_dir)
        own_environment = mpi | {
            "HOLDFAST_RUN_ENDED": json.dumps(ended.command()),
            "HOLDFAST_RUN_PID": str(os.getpid()),
        }
        return await Spawned.start(argv, {**environment, **own_environment}, log_path)

    def adopt_agents(self) -> AgentsHandle:
        raise UsageError("on the local cluster nodes end with their supervisor; start the job again in the same folder")

    def let_go(self) -> None:
        """Nobody takes over on the local cluster."""

    def end_job(self) -> None:
        """Nothing to do: the job ends with this process."""

    def requeue(self, exclude: Collection[str] = ()) -> None:
        raise UsageError("the local cluster has no queue; start the job again in the same folder to go on")

    def unusable(self, nodes: Collection[str]) -> dict[str, str]:
        return {}

    def time_left_s(self) -> float | None:
        return None

    def why_terminated(self) -> str:
        return "requeue"

    async def close(self, *, forget: bool) -> None:
        await asyncio.gather(*(runner.end(_CLOSE_TIMEOUT_S) for runner in self._runners))
        await end_all(lambda: pids_with_environment({"HOLDFAST_RUN_ID": self.run_id}), _CLOSE_TIMEOUT_S)
        remove_memory_dir(self._mpi_dir)
        if forget:  # a node that was lost has not done so itself
            for node in self.nodes:
                remove_memory_dir(memory_dir(self.run_id, node))

    def _node_environment(self, node: str) -> dict[str, str]:
        return {"HOLDFAST_NODE": node, "HOLDFAST_RAM_DIR": str(memory_dir(self.run_id, node))}


def kill_node(job_dir: Path, node: str) -> list[int]:
    """Loses a node of a local job: SIGKILLs every process of it and wipes its memory.

    Args:
        job_dir: the job's folder.
        node: the node's name.

    Returns:
        The processes that were there.
    """
    run_id = local_run_id(job_dir)

    def find() -> list[int]:
        return pids_with_environment({"HOLDFAST_RUN_ID": run_id, "HOLDFAST_NODE": node})

    pids = find()
    asyncio.run(end_all(find, _KILL_NODE_TIMEOUT_S))
    shutil.rmtree(memory_dir(run_id, node), ignore_errors=True)
    return pids


def require_mpirun(spec: JobSpec) -> None:
    """Finds out, before anything starts, whether a job's checkpoint agents can be started here.

    Raises:
        UsageError: they cannot.
    """
    if spec.checkpoint is not None:
        _mpirun()


def _mpirun() -> str:
    if (mpirun := find_mpirun()) is None:
        raise UsageError(
            "mpirun: not found; checkpoints on the local cluster need one: pip install 'holdfast-hpc[mpi]'"
        )
    return mpirun


def _private_mpi(session_dir: Path) -> dict[str, str]:
    """Keeps an MPI world on this machine to itself: its files in our directory, and no scheduler asked for nodes."""
    return {
        "TMPDIR": str(session_dir),
        "PRTE_MCA_prte_tmpdir_base": str(session_dir),
        "PRTE_MCA_ras": "^slurm",
        "PRTE_MCA_plm": "ssh",
    }
