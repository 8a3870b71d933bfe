"""Runs a supervisor: on the batch host under a batch process, on the local cluster, or after a take-over."""

from __future__ import annotations

import asyncio
from pathlib import Path

from launcher.history.events import EventLog
from launcher.history.outcome import Outcome
from launcher.job.jobfile import JobSpec
from launcher.observer.start import observed
from launcher.scheduler import scheduler
from launcher.supervisor.batch_process import BatchProcess
from launcher.supervisor.folder import log_to, make_folders, prepare
from launcher.supervisor.supervisor import Supervisor


def supervise(spec: JobSpec, job_dir: Path, cluster: str) -> Outcome:
    """Run a job to its end. Blocks. Call it in the main thread, because it handles signals.

    SIGINT ends the job at once. SIGTERM (Slurm requeues or preempts the job), SIGUSR1 and SIGUSR2 (the time limit is
    near) have all ranks stop at one step boundary and save. After SIGUSR1 or SIGUSR2 the supervisor requeues the job.

    Args:
        spec: the job.
        job_dir: its folder; made if missing, continued if it holds a job already.
        cluster: the name of its scheduler.

    Raises:
        LauncherError, SlurmError: the job could not start; no process was started.
    """
    job_dir = job_dir.absolute()
    opened = scheduler(cluster).cluster(spec, job_dir)  # raises its errors here, before a child process starts
    if spec.checkpoint is not None:
        opened.require_mpi()
    make_folders(job_dir)
    if not scheduler(cluster).has_standbys:
        return supervise_here(spec, job_dir, cluster)
    return BatchProcess(lambda after: supervise_here(spec, job_dir, cluster, take_over=after), job_dir).run()


def supervise_here(
    spec: JobSpec,
    job_dir: Path,
    cluster: str,
    *,
    take_over: int | None = None,
    predecessor_is_silent: bool = False,
) -> Outcome:
    """Run a supervisor in this process.

    Args:
        spec, job_dir, cluster: as in `supervise`; the folder must exist.
        take_over: the term of the lost supervisor; None to start the job, or to continue it after a requeue.
        predecessor_is_silent: whether nothing answers on the lost supervisor's node.

    Returns:
        The outcome; its name is "superseded" if another supervisor has taken over.
    """
    events = EventLog(job_dir / "events.jsonl", lock=not scheduler(cluster).has_standbys)
    try:
        if take_over is None:
            prepare(spec, job_dir)
        with log_to(job_dir / "log" / "supervisor.log"), observed(spec, job_dir, cluster):
            opened = scheduler(cluster).cluster(spec, job_dir)
            supervisor = Supervisor(spec, job_dir, opened, events, take_over, predecessor_is_silent)
            return asyncio.run(supervisor.run())
    finally:
        events.close()
