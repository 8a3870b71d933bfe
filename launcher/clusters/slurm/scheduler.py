"""Slurm as a scheduler. Slurm's state of a job decides."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import slurm as slurm_
from launcher.errors import NoAnswer
from launcher.history.status import JobStatus
from launcher.job.jobfile import JobSpec
from launcher.job.registry import KnownJob
from launcher.scheduler.cluster import Cluster
from launcher.scheduler.interface import JobExecutor, JobPlace, RunLiveness
from slurm import JobEnvironment, Slurm, SlurmError

if TYPE_CHECKING:
    from lifecycle import Finding
    from slurm.command import CommandRunner

_UNSURE = "NODE_FAIL"  # processes may still run on a node that Slurm cannot reach

log = logging.getLogger(__name__)


class SlurmScheduler:
    """Implements Scheduler.

    Args:
        slurm: the client; None for a new one at each request.
    """

    name = "slurm"
    has_standbys = True
    is_this_machine = False
    can_requeue = True
    poll_s = 5.0
    step_variables = (
        "SLURM_STEP", "SLURM_TASK", "SLURM_CPU_BIND", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_DISTRIBUTION",
        "SLURM_PROCID", "SLURM_LOCALID", "SLURM_SRUN", "SLURM_LAUNCH", "SLURM_UMASK", "PMI",
    )  # fmt: skip

    def __init__(self, slurm: Slurm | None = None) -> None:
        self._slurm = slurm

    def executor(self, folder: Path, **options: Any) -> JobExecutor:
        from launcher.clusters.slurm.submission import SupervisedSlurmExecutor

        return SupervisedSlurmExecutor(folder, **options)

    def options(self, words: Sequence[str]) -> Mapping[str, str]:
        from launcher.clusters.slurm.submission import flag_values

        return flag_values(words)

    def preview(self, spec: JobSpec, folder: str, words: Sequence[str], *, asks: bool) -> tuple[str, str]:
        from launcher.clusters.slurm.submission import sbatch_script, sbatch_test

        if asks:
            return sbatch_test(spec, folder, words), ""
        script, command = sbatch_script(spec, folder, words)
        return script.rstrip("\n"), f"# submitted by: {shlex.join(command)} SCRIPT"

    def findings(self, spec: JobSpec | None, run: CommandRunner) -> Iterator[Finding]:
        from launcher.clusters.slurm.findings import findings

        return findings(spec, run)

    def on_one_node(self, spec: JobSpec | None, findings: Sequence[Finding]) -> Sequence[str] | None:
        from launcher.clusters.slurm.findings import step

        checks = {row.check: row.status.word for row in findings}
        return None if "slurm" in checks else step(spec, has_pmix=checks.get("pmix") == "ok")

    def cluster(self, spec: JobSpec, job_dir: Path) -> Cluster:
        from launcher.clusters.slurm.cluster import SlurmCluster

        return SlurmCluster(spec, job_dir)

    def place(self, env: Mapping[str, str]) -> JobPlace | None:
        if "SLURM_JOB_ID" not in env:
            return None
        job, gpus = JobEnvironment.from_env(env), env.get("SLURM_GPUS_ON_NODE", "")
        return JobPlace(
            job_id=job.reference,
            allocation=str(job.job_id),
            nodes=job.nodes,
            node=job.node,
            task=int(env.get("SLURM_PROCID", 0)),
            gpus=int(gpus) if gpus.isdecimal() else 0,
        )

    def hand_back(self, env: Mapping[str, str], *, is_over: bool) -> None:
        from launcher.clusters.slurm.requeue import requeue

        us, slurm = JobEnvironment.from_env(env), self._client()

        def is_ours() -> bool:
            try:
                job = slurm.job(us.reference)
            except SlurmError as error:
                raise NoAnswer(str(error)) from error
            if job is None or job.restarts != us.restart_count:
                return False
            return job.state == "RUNNING" or job.has_lost_its_script

        if not is_ours():
            return
        if not is_over:
            try:
                requeue(slurm, us.reference, us.restart_count)
                return
            except SlurmError as error:
                if not is_ours():
                    return
                log.warning("the job has no supervisor and could not be requeued: %s; it is cancelled", error)
        slurm.cancel(us.reference)

    def liveness(self, run_id: str, env: Mapping[str, str]) -> RunLiveness:
        """slurmctld deletes its record of a job some time after the end (MinJobAge). So a job of this cluster that it
        does not know has ended. A job that is ending is COMPLETING until its last process has ended."""
        match = re.fullmatch(r"slurm-(.+)-([0-9]{1,10})", run_id, re.ASCII)
        slurm = self._client()
        try:
            here = env.get("SLURM_CLUSTER_NAME") or (slurm.cluster_name() if match else "")
            if match is None or match[1] != here:
                words = f"is no job of cluster {here or '(none)'}"
                return RunLiveness(has_ended=False, is_running=False, words=words)
            job = slurm.job(int(match[2]))
        except SlurmError as error:
            return RunLiveness(has_ended=False, is_running=False, words=str(error))
        if job is None:
            return RunLiveness(
                has_ended=True, is_running=False, words=f"job {match[2]} is over, Slurm has forgotten it"
            )
        has_ended = job.has_ended and job.state != _UNSURE
        words = f"job {match[2]} is {job.state}"
        return RunLiveness(has_ended=has_ended, is_running=job.state == "RUNNING", words=words)

    def corrected(self, job: KnownJob, status: JobStatus) -> JobStatus:
        from launcher.clusters.slurm.status import in_queue, with_boosters

        return with_boosters(job, in_queue(job, status))

    def check_here(self, job: KnownJob) -> None:
        from launcher.clusters.slurm.status import check_here

        check_here(job)

    def leave_queue(self, job: KnownJob) -> bool:
        slurm = self._client()
        queued = slurm.job(job.job_id)
        if queued is None or queued.state != "PENDING":
            return False
        slurm.cancel_pending(job.job_id)
        queued = slurm.job(job.job_id)
        return queued is None or queued.state == "CANCELLED"

    def cancel(self, job: KnownJob) -> None:
        from launcher.clusters.slurm.submission import cancel

        self.check_here(job)
        cancel(job.job_id)

    def _client(self) -> Slurm:
        return self._slurm or slurm_.Slurm()
