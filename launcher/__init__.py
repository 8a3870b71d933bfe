"""Submits a job, supervises it, recovers it. Importing it needs neither torch nor MPI.

    cli/           the `holdfast` command; progress.py follows `run` (with folder_watch.py), waiting.py `wait`
    screen/        the screens of `status --watch` and `top`
    executor       submitit's executor; job.py: the job that it returns
    submission/    submits a job to Slurm or to the local cluster, or runs it inside an existing Slurm job
    supervisor/    drives the decision core: one per job
    core/          decides: state and input in, state and commands out
    leadership/    chooses the supervisor of a job, by terms and a lease
    connections/   authenticated connections between the hosts of a job
    scheduler/     starts runners and agents, on Slurm or on this machine
    runner/        one per node: heartbeat, warm process, workers
    history/       events.jsonl, the only record of a job, and its readers
    env/           the environment of a job's processes: lint, fabric, containers, failure domains
    observer/      tells others what the events say: notices, heartbeats, metrics
    doctor/        checks whether a job will run here
    report/        the facts of a job for its report, its metrics and the dashboard
    dashboard      serves the reports of all jobs to a browser
    notify         the sections notify and metrics of the job file
    jobfile        the job file; its parts are in elastic.py, sbatch_options.py and gpus.py
    program        what workers run, checked before submission; job_paths.py: the paths of a job file
    checkpoint_plan  calculates the space and time of a job's checkpoints
    boosters       checks whether Slurm can start an elastic job's boosters
    registry       finds this user's jobs
    logs           finds and prints the logs of ranks and nodes
    log_text       makes the text of logs safe for a terminal
    usage          node-hours of each account, own and borrowed
    outcome        how a job ends, and its exit codes
    stop_request   the file that requests a save and the end; scale_request.py: another number of nodes
    run_id         the id of a run; run_liveness.py: whether another run has ended
    supervisor_process  the supervisor's process on the local cluster
    processes      finds and ends processes
    plain_file     reads files of other users safely; tail.py: growing files; disk_read.py: reads with a deadline
    module_names   lets a script have modules of the same names as Holdfast's packages
    errors         the launcher's errors

Public names:
    Executor       submitit executor whose jobs survive the nodes they lose
    Torchrun       a training script to submit
    JobSpec        one validated job
    load_job       reads a job file
    LauncherError  base class of the launcher's errors; UsageError: the request is not valid
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
    """Import a public name at its first use, so that submitit is imported only if it is needed."""
    if name not in _HOME:
        raise AttributeError(f"module 'launcher' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
