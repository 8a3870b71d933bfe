"""The shelf as a scheduler."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ckpt.agent.process.launch import PYTHON
from launcher.clusters.shelf import queue
from launcher.core.outcomes import JobOutcome
from launcher.errors import LauncherError, UsageError
from launcher.history.outcome import Outcome
from launcher.history.status import JobStatus
from launcher.job.jobfile import JobSpec
from launcher.job.registry import KnownJob
from launcher.job.supervisor_process import Process
from launcher.scheduler.cluster import Cluster
from launcher.scheduler.interface import JobExecutor, JobPlace, RunLiveness
from launcher.submission.job import SupervisedJob
from launcher.submission.job_control import cancel_job
from launcher.submission.request import make_folder, write_request
from launcher.submission.submitit_base import JobPaths
from lifecycle import Finding, Status
from slurm.command import CommandRunner


class ShelfJob(SupervisedJob):
    """A job on the shelf."""

    @property
    def state(self) -> str:
        return queue.state(self.job_id)

    def cancel(self, check: bool = True) -> None:
        cancel_job(self._known())

    def done(self, force_check: bool = False) -> bool:
        return self.state == "ENDED"


class ShelfExecutor:
    """Implements JobExecutor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parameters: dict[str, Any] = {}

    def use(self, spec: JobSpec) -> None: ...

    def check(self, spec: JobSpec) -> None: ...

    def waits_for_others(self) -> bool:
        return False

    def request(self) -> str:
        return ""

    def cluster_name(self) -> str:
        return ""

    def launch(self, specs: Sequence[JobSpec]) -> list[Any]:
        jobs = []
        for spec in specs:
            paths = JobPaths(self.folder, job_id=queue.new_id(), task_id=0)
            make_folder(paths.folder)
            write_request(paths.folder, spec.to_json(), "shelf")
            argv = [*PYTHON, "-u", "-m", "launcher.submission.batch", "shelf", str(self.folder)]
            nodes = [f"shelf{index}" for index in range(spec.most_nodes)]
            queue.enqueue(paths.job_id, argv, nodes, paths.stdout)
            jobs.append(ShelfJob(self.folder, paths.job_id))
        return jobs


class ShelfScheduler:
    """Implements Scheduler."""

    name = "shelf"
    has_standbys = False
    is_this_machine = True
    can_requeue = False
    poll_s = 0.0
    step_variables = ("SHELF_NODE",)

    def executor(self, folder: Path, **options: Any) -> JobExecutor:
        return ShelfExecutor(folder, **options)

    def options(self, words: Sequence[str]) -> Mapping[str, str]:
        if words:
            raise UsageError(f"submit: got {' '.join(words)}, expected no options for the shelf")
        return {}

    def preview(self, spec: JobSpec, folder: str, words: Sequence[str], *, asks: bool) -> tuple[str, str]:
        return f"nodes {spec.most_nodes}", "asked" if asks else ""

    def findings(self, spec: JobSpec | None, run: CommandRunner) -> Iterator[Finding]:
        yield Finding(check="shelf", status=Status.OK, measured="there")

    def on_one_node(self, spec: JobSpec | None, findings: Sequence[Finding]) -> Sequence[str]:
        return ("env", "SHELF_NODE=shelf0")

    def cluster(self, spec: JobSpec, job_dir: Path) -> Cluster:
        from launcher.clusters.shelf.cluster import ShelfCluster

        return ShelfCluster(spec, job_dir)

    def place(self, env: Mapping[str, str]) -> JobPlace | None:
        if "SHELF_JOB" not in env:
            return None
        job, nodes = env["SHELF_JOB"], tuple(env["SHELF_NODES"].split())
        return JobPlace(job_id=job, allocation=job, nodes=nodes, node=env.get("SHELF_NODE", nodes[0]), task=0)

    def hand_back(self, env: Mapping[str, str], *, is_over: bool) -> None: ...

    def liveness(self, run_id: str, env: Mapping[str, str]) -> RunLiveness:
        state = queue.state(run_id.removeprefix("shelf-"))
        return RunLiveness(has_ended=state == "ENDED", is_running=state == "RUNNING", words=f"the shelf says {state}")

    def corrected(self, job: KnownJob, status: JobStatus) -> JobStatus:
        state = queue.state(job.job_id)
        if state == "WAITING":
            return replace(status, reason="waits on the shelf")
        if state == "RUNNING":
            return replace(status, state="starting") if status.state == "pending" else status
        if (outcome := Outcome.read(job.folder)) is not None:
            return replace(status, state=outcome.name, reason=outcome.reason)
        return replace(status, state="lost", reason=f"it left no outcome and the shelf says {state}")

    def check_here(self, job: KnownJob) -> None: ...

    def leave_queue(self, job: KnownJob) -> bool:
        return queue.take(job.job_id)

    def cancel(self, job: KnownJob) -> None:
        if queue.take(job.job_id):
            outcome = Outcome(name=JobOutcome.CANCELLED, step=None, reason="taken from the shelf", seconds=0.0)
            return outcome.write(job.folder, f"shelf-{job.job_id}")
        process = Process.read(queue.folder_of(job.job_id))
        if process is None or not process.interrupt():
            raise LauncherError(f"job {job.job_id}: it does not run")
        while process.alive():
            time.sleep(0.1)
