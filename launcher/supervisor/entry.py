"""A supervisor's life from outside: on the batch host under a keeper, on the local cluster, or after a take-over."""

from __future__ import annotations

import asyncio
from pathlib import Path

from launcher.history.events import EventLog
from launcher.jobfile import JobSpec
from launcher.outcome import Outcome
from launcher.scheduler import open_cluster
from launcher.supervisor.batch_process import BatchProcess
from launcher.supervisor.folder import log_to, make_folders, prepare
from launcher.supervisor.supervisor import Supervisor


def supervise(spec: JobSpec, job_dir: Path, cluster: str) -> Outcome:
    """Runs a job to its end. Blocks; call it in the main thread, where it handles SIGTERM, SIGUSR1, SIGUSR2 and SIGINT.

    SIGINT ends the job at once. SIGTERM (Slurm requeues or preempts the job), SIGUSR1 and SIGUSR2 (its time limit is
    near) have all ranks stop at one step boundary and save; after the latter two the job is then requeued from here.

    Args:
        spec: the job.
        job_dir: its folder; made if missing, continued if it holds a job already.
        cluster: "slurm" or "local".

    Raises:
        LauncherError, SlurmError: the job could not be begun; nothing was started.
    """
    job_dir = job_dir.absolute()
    opened = open_cluster(cluster, spec, job_dir)  # raises here what it has to
    if spec.checkpoint is not None:
        opened.require_mpi()
    make_folders(job_dir)
    if cluster != "slurm":
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
    """A supervisor's life in this process.

    Args:
        spec, job_dir, cluster: as for `supervise`; the folder is there.
        take_over: the term of the supervisor that is gone; None starts the job, or goes on with it after a requeue.
        predecessor_is_silent: whether nothing answers on that supervisor's node.

    Returns:
        The outcome; "superseded" where another supervisor has taken over.
    """
    events = EventLog(job_dir / "events.jsonl", lock=cluster != "slurm")
    try:
        if take_over is None:
            prepare(spec, job_dir)
        with log_to(job_dir / "log" / "supervisor.log"):
            opened = open_cluster(cluster, spec, job_dir)
            supervisor = Supervisor(spec, job_dir, opened, events, take_over, predecessor_is_silent)
            return asyncio.run(supervisor.run())
    finally:
        events.close()
