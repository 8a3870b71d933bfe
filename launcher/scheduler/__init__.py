"""How runners and ckpt agents are started: on Slurm, or on this machine alone.

cluster.py        the contract
slurm.py          inside a Slurm job: one srun step for the runners, one per attempt for the agents
boosters.py       a run's further Slurm jobs: their scripts, states and end
booster.py        what a booster's batch script runs: a runner on each of its nodes
srun_log.py       the nodes on which an srun could not start its tasks
local.py          nodes are process groups on this machine; kill_node() loses one
mpirun.py         where mpirun is
child_process.py  a process that we started, and end for certain
"""

from __future__ import annotations

from pathlib import Path

from launcher.errors import UsageError
from launcher.jobfile import JobSpec
from launcher.scheduler.cluster import Cluster


def open_cluster(name: str, spec: JobSpec, job_dir: Path) -> Cluster:
    """The cluster of a job.

    Args:
        name: "slurm" (inside a Slurm job) or "local".

    Raises:
        UsageError: there is no such cluster.
        slurm.SlurmError: "slurm" outside a Slurm job.
    """
    if name == "local":
        from launcher.scheduler.local import LocalCluster

        return LocalCluster(spec, job_dir)
    if name == "slurm":
        from launcher.scheduler.slurm import SlurmCluster

        return SlurmCluster(spec, job_dir)
    raise UsageError(f"cluster: got {name!r}, expected slurm or local")
