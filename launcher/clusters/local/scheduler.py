"""The local cluster as a scheduler: there is no queue, and a job's state is that of its supervisor's process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.environment import Variable
from holdfast.base.processes import pids_with_environment
from launcher.clusters.mpirun import find_mpirun
from launcher.errors import LauncherError, UsageError
from launcher.history.outcome import Outcome
from launcher.history.status import JobStatus
from launcher.job.jobfile import JobSpec
from launcher.job.registry import KnownJob, listed_jobs
from launcher.job.run_id import local_run_id
from launcher.job.supervisor_process import Process
from launcher.scheduler.cluster import Cluster
from launcher.scheduler.interface import JobExecutor, JobPlace, RunLiveness

if TYPE_CHECKING:
    from lifecycle import Finding
    from slurm.command import CommandRunner

_CANCEL_DEADLINE_S = 30.0
_POLL_S = 0.1


class LocalScheduler:
    """Implements Scheduler."""

    name = "local"
    has_standbys = False
    is_this_machine = True
    can_requeue = False
    poll_s = 0.0
    step_variables = ()

    def executor(self, folder: Path, **options: Any) -> JobExecutor:
        from launcher.clusters.local.submission import SupervisedLocalExecutor

        return SupervisedLocalExecutor(folder, **options)

    def options(self, words: Sequence[str]) -> Mapping[str, str]:
        if words:
            raise UsageError(f"submit: got {' '.join(words)} with --cluster local, expected no sbatch options there")
        return {}

    def preview(self, spec: JobSpec, folder: str, words: Sequence[str], *, asks: bool) -> tuple[str, str]:
        option = "--test-only" if asks else "--dry-run"
        raise UsageError(f"{option}: got --cluster local, expected slurm; only there is a script")

    def findings(self, spec: JobSpec | None, run: CommandRunner) -> Iterator[Finding]:
        from lifecycle import Finding, Status

        if spec is not None and spec.checkpoint is None:
            return
        row = Finding(check="mpirun", status=Status.OK, measured="found", expected="mpirun, for checkpoint agents")
        if find_mpirun() is None:
            advice = "pip install 'holdfast-hpc[mpi]'"
            row = replace(row, status=Status.CRITICAL, measured="mpirun: not found", advice=advice)
        yield row

    def on_one_node(self, spec: JobSpec | None, findings: Sequence[Finding]) -> Sequence[str]:
        return ()

    def cluster(self, spec: JobSpec, job_dir: Path) -> Cluster:
        from launcher.clusters.local.cluster import LocalCluster

        return LocalCluster(spec, job_dir)

    def place(self, env: Mapping[str, str]) -> JobPlace | None:
        return None

    def hand_back(self, env: Mapping[str, str], *, is_over: bool) -> None:
        """Does nothing: the nodes end with their supervisor."""

    def liveness(self, run_id: str, env: Mapping[str, str]) -> RunLiveness:
        """By the processes on this machine. The run is searched in the registry and beside the current job's folder."""
        beside = Path(env[Variable.JOB_DIR]).parent if env.get(Variable.JOB_DIR) else None
        job = next((job for job in listed_jobs(beside) if local_run_id(job.folder) == run_id), None)
        process = Process.read(job.folder) if job is not None else None
        if process is None:
            return RunLiveness(has_ended=False, is_running=False, words="is no local job that is known here")
        if process.alive():
            words = f"its supervisor is process {process.pid} here"
            return RunLiveness(has_ended=False, is_running=True, words=words)
        if not process.has_ended():
            words = f"its supervisor, process {process.pid} on {process.host}, may live"
            return RunLiveness(has_ended=False, is_running=False, words=words)
        left = pids_with_environment({Variable.RUN_ID: run_id})
        words = f"its processes live: {left}" if left else "its processes are gone"
        return RunLiveness(has_ended=not left, is_running=False, words=words)

    def corrected(self, job: KnownJob, status: JobStatus) -> JobStatus:
        from launcher.submission.logs import last_words

        process = Process.read(job.folder)
        if process is None or process.alive():
            return status
        if (outcome := Outcome.read(job.folder)) is not None:  # a job that was cancelled early has no events
            return replace(status, state=outcome.name, reason=outcome.reason)
        return replace(status, state="lost", reason=f"its supervisor is gone; {last_words(job)}")

    def check_here(self, job: KnownJob) -> None:
        """Does nothing: ids have the time of the submission in them."""

    def leave_queue(self, job: KnownJob) -> bool:
        return False

    def cancel(self, job: KnownJob) -> None:
        process = Process.read(job.folder)
        if process is None or not process.interrupt():
            raise LauncherError(f"job {job.job_id}: no process of it on this host; cancel it on the host that runs it")
        deadline_s = time.monotonic() + _CANCEL_DEADLINE_S
        while process.alive():
            if time.monotonic() > deadline_s:
                raise LauncherError(
                    f"job {job.job_id}: process {process.pid} still runs {_CANCEL_DEADLINE_S:g} s after it was asked "
                    f"to end; see {job.folder}/log/supervisor.log"
                )
            time.sleep(_POLL_S)
