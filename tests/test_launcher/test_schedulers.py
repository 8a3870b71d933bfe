"""Each scheduler of the table can be asked whatever the launcher asks, and a further one needs nothing but its row."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from launcher.clusters.local.scheduler import LocalScheduler
from launcher.clusters.local.submission import SupervisedLocalExecutor, SupervisedLocalJob
from launcher.errors import UsageError
from launcher.history.status import JobStatus
from launcher.job.jobfile import JobSpec
from launcher.job.registry import KnownJob, find_job
from launcher.scheduler import SCHEDULERS, Registered, run_liveness, scheduler, scheduler_of, surrounding
from launcher.scheduler.cluster import Cluster
from launcher.scheduler.interface import JobExecutor, JobPlace, RunLiveness, Scheduler
from launcher.submission.executor import Executor, Torchrun
from launcher.submission.in_allocation import InsideJob
from launcher.submission.job_control import cancel_job, status_now
from launcher.submission.request import write_request


def demanded(interface: type) -> list[str]:
    """The attributes and methods of an interface."""
    return [name for name in (*inspect.get_annotations(interface), *vars(interface)) if not name.startswith("_")]


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_has_all_that_the_launcher_asks_for(name: str) -> None:
    found = scheduler(name)
    for interface, implementation in ((Scheduler, found), (JobExecutor, found.executor(Path("runs/%j")))):
        assert [each for each in demanded(interface) if not hasattr(implementation, each)] == []
    module = import_module(f"launcher.clusters.{name}.cluster")
    (cluster,) = (each for each in vars(module).values() if inspect.isclass(each) and getattr(each, "name", "") == name)
    made = inspect.getsource(cluster.__init__)  # the attributes that its constructor sets
    assert [each for each in demanded(Cluster) if not hasattr(cluster, each) and f"self.{each}" not in made] == []
    assert found.name == name and scheduler_of(f"{name}-x-7") is found


def test_a_scheduler_that_is_not_in_the_table_is_refused_with_those_that_are() -> None:
    with pytest.raises(UsageError, match="got 'cloud', expected one of slurm, local"):
        scheduler("cloud")
    found = run_liveness.liveness("program-x", os.environ)
    assert not found.has_ended and not found.is_running and "expected one of slurm, local" in found.words


class AtExecutor(SupervisedLocalExecutor):
    """Makes the folders of jobs, which wait in the queue."""

    def launch(self, specs: Sequence[JobSpec]) -> list[Any]:
        jobs = [SupervisedLocalJob(folder=self.folder, job_id=f"a{index}") for index, _ in enumerate(specs)]
        for job, spec in zip(jobs, specs, strict=True):
            job.paths.folder.mkdir(parents=True)
            write_request(job.paths.folder, spec.to_json(), "at")
        return jobs


class AtScheduler(LocalScheduler):
    """A further scheduler, with a queue."""

    name = "at"
    cancelled = ""

    def executor(self, folder: Path, **options: Any) -> JobExecutor:
        return AtExecutor(folder, **options)

    def place(self, env: Mapping[str, str]) -> JobPlace | None:
        if "AT_JOB" not in env:
            return None
        return JobPlace(job_id=env["AT_JOB"], allocation=env["AT_JOB"], nodes=("n1", "n2"), node="n1", task=1)

    def liveness(self, run_id: str, env: Mapping[str, str]) -> RunLiveness:
        return RunLiveness(has_ended=True, is_running=False, words=f"{run_id} is over")

    def corrected(self, job: KnownJob, status: JobStatus) -> JobStatus:
        return replace(status, reason="waits for the evening")

    def cancel(self, job: KnownJob) -> None:
        AtScheduler.cancelled = job.job_id


def test_a_further_scheduler_needs_its_package_and_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEDULERS, "at", Registered(f"{__name__}:AtScheduler", "this machine in the evening"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    submitted = Executor(cluster="at").submit(Torchrun("train.py", nodes=2))
    job = find_job(submitted.job_id)
    assert (job.cluster, job.nodes) == ("at", 2)
    assert status_now(job).reason == "waits for the evening"
    cancel_job(job)
    assert AtScheduler.cancelled == submitted.job_id == "a0"
    assert run_liveness.liveness("at-x-1", {}) == (True, False, "at-x-1 is over")
    inside = InsideJob.from_env({"AT_JOB": "7"})
    assert (inside.cluster, inside.job_id, inside.nodes, inside.task) == ("at", "7", 2, 1)
    assert surrounding({}) is None
