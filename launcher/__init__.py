"""Submits a job, supervises it, recovers it. Importing it needs neither torch nor MPI.

    cli/           the `holdfast` command; progress.py is its live view
    executor       submitit's executor
    submission/    hands a job to Slurm or to the local cluster, or runs it inside the job that we are in
    supervisor/    drives the decision core: one per job
    core/          decides: state and input in, state and commands out
    leadership/    who supervises a job: terms and the lease
    connections/   authenticated connections between the hosts of a job
    scheduler/     starts runners and agents, on Slurm or on this machine
    runner/        one per node: heartbeat, warm process, workers
    history/       events.jsonl, the single record, and its readers
    env/           the environment of a job's processes: lint, fabric, containers, failure domains
    doctor/        whether a job will run here
    jobfile        what to run; elastic.py: its sizes, sbatch_options.py, gpus.py; checkpoint_plan.py: what its
                   checkpoints take; boosters.py: whether Slurm can give an elastic job its boosters
    registry       where this user's jobs are; logs.py: what ranks and nodes wrote
    outcome        how a job ends, and its exit codes
    stop_request   the file that asks for a save and the end; scale_request.py: for another size
    run_id         the identity of a run; run_liveness.py: whether another run has ended
    supervisor_process  the process of a job on the local cluster; processes.py finds and ends processes
    plain_file     reads files of other users safely; tail.py: files that grow; disk_read.py: with a deadline
    module_names   a script's own modules win over Holdfast's of the same name
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
