"""Starts runners and ckpt agents, on Slurm or on this machine alone.

cluster.py        the interface
slurm.py          inside a Slurm job: one srun step for the runners, one per attempt for the agents
boosters.py       submits, observes and ends the boosters, which are further Slurm jobs of a run
booster.py        the program of a booster's batch script: starts a runner on each of its nodes
drained.py        why Slurm drains a node, in words
srun_log.py       reads from srun's log on which nodes it could not start its tasks
local.py          nodes as process groups on this machine; kill_node() kills one
mpirun.py         finds mpirun
child_process.py  a child process of the supervisor
"""

from __future__ import annotations

from pathlib import Path

from launcher.errors import UsageError
from launcher.job.jobfile import JobSpec
from launcher.scheduler.cluster import Cluster


def open_cluster(name: str, spec: JobSpec, job_dir: Path) -> Cluster:
    """Make the `Cluster` of a job.

    Args:
        name: "slurm" (only inside a Slurm job) or "local".
        spec: the job.
        job_dir: its folder.

    Raises:
        UsageError: the name is neither.
        slurm.SlurmError: the name is "slurm", and this process is not in a Slurm job.
    """
    if name == "local":
        from launcher.scheduler.local import LocalCluster

        return LocalCluster(spec, job_dir)
    if name == "slurm":
        from launcher.scheduler.slurm import SlurmCluster

        return SlurmCluster(spec, job_dir)
    raise UsageError(f"cluster: got {name!r}, expected slurm or local")
