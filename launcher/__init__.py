"""Submits a job, supervises it, recovers it. Importing it needs neither torch nor MPI.

    cli/           the `holdfast` command
    screen/        the screens of `status --watch` and `top`, and the dashboard for a browser
    job/           what a job is: its file, its ids, where it is found, what its user asks of it
    submission/    submitit's executor; submits and controls jobs, or runs one inside a job of another tool
    doctor/        checks whether a job will run here
    supervisor/    drives the decision core: one per job
    diagnosis/     why an attempt hung or failed: rank, class, domain, proof, advice
    core/          decides: state and input in, state and commands out
    leadership/    chooses the supervisor of a job, by terms and a lease; its requeue
    connections/   authenticated connections between the hosts of a job
    scheduler/     what the launcher asks of a scheduler: interfaces, and the table of the schedulers
    clusters/      the schedulers: Slurm, and this machine alone
    runner/        one per node: heartbeat, warm process, workers
    history/       events.jsonl, the only record of a job, its readers, and how a job ends
    env/           the environment of a job's processes: lint, fabric, containers, failure domains
    observer/      tells others what the events say: notices, heartbeats, metrics
    report/        the facts of a job for its report, its metrics and the dashboard
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
    from launcher.job.jobfile import JobSpec, load_job
    from launcher.submission.executor import Executor, Torchrun

__all__ = ["Executor", "JobSpec", "LauncherError", "Torchrun", "UsageError", "load_job"]

_HOME = {
    "Executor": "launcher.submission.executor",
    "JobSpec": "launcher.job.jobfile",
    "Torchrun": "launcher.submission.executor",
    "load_job": "launcher.job.jobfile",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that submitit is imported only if it is needed."""
    if name not in _HOME:
        raise AttributeError(f"module 'launcher' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
