"""Submits a job, supervises it, recovers it. Importing it needs neither torch nor MPI.

    cli/           the `holdfast` command; progress.py is its live view
    executor       submitit's way in
    submission/    handing a job to Slurm or to the local cluster; or running it inside the job that we are in
    supervisor/    decides: one per job
    clusters/      starts runners and agents, on Slurm or on this machine
    standby        takes over from a supervisor that is lost
    terms          who supervises a job: terms and the lease
    runner/        one per node: heartbeat, warm process, workers
    history/       events.jsonl, the single record, and its readers
    registry       where this user's jobs are; operate.py asks how they stand and ends them; stop_request.py: the file
                   that has one save and end
    logs           what ranks and nodes wrote; tail.py reads what others append to; plain_file.py, a stranger's files
    jobfile        what to run; checkpoint_plan.py says what its checkpoints will take
    module_names   a script's own modules win over Holdfast's of the same name
    channel        authenticated frames between supervisor and runners; half_open.py and listener.py bound strangers
    job_socket     a socket that only the job's hosts reach; host_addresses.py: which these are
    doctor/        whether a job will run here
    fabric         NCCL over EFA: what to set, what its log says; environment.py and node_env.py lint what is set
    domains        which switch each node hangs on
    containers     which options of a job belong to its steps
    errors

Public names:
    Executor       submitit executor whose jobs survive the nodes they lose
    Torchrun       a training script to submit
    JobSpec        one validated job
    load_job       reads a job file
    LauncherError  base of all errors raised here; UsageError: the request itself is wrong
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from launcher.errors import LauncherError, UsageError

if TYPE_CHECKING:
    from launcher.executor import Executor, Torchrun
    from launcher.jobfile import JobSpec, load_job

__all__ = ["Executor", "JobSpec", "LauncherError", "Torchrun", "UsageError", "load_job"]

_HOME = {
    "Executor": "launcher.executor",
    "JobSpec": "launcher.jobfile",
    "Torchrun": "launcher.executor",
    "load_job": "launcher.jobfile",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used, and submitit with it only then."""
    if name not in _HOME:
        raise AttributeError(f"module 'launcher' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
