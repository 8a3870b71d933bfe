"""A job that grows and shrinks on the local cluster as `holdfast scale` asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_job import SCRIPT
from main_job import Event, Watch

from launcher import Executor, JobSpec
from launcher.registry import find_job
from launcher.run_id import local_run_id
from launcher.runner.memory import memory_dir
from launcher.scheduler.local import kill_node
from launcher.submission.job_control import cancel_job, scale_job

SIZE_S = 90.0


class LocalJob:
    """An elastic job of two to four nodes, on two of them at first."""

    def __init__(self, folder: Path, **elastic: Any) -> None:
        shared = {"path": str(folder / "shared"), "every_steps": 100_000}
        checkpoint = {"namespace": "local", "memory": {"every_steps": 10, "keep": 2}, "shared": shared}
        job = {
            "name": "local",
            "script": str(SCRIPT),
            "nodes": 2,
            "elastic": {"min_nodes": 2, "max_nodes": 4, "scaling_timeout_s": 0.5, "scale_up_snooze_s": 1} | elastic,
            "checkpoint": checkpoint | {"redundancy": {"scheme": "partner"}},
        }
        self.submitted = Executor(folder=folder / "%j", cluster="local").submit(JobSpec.from_mapping(job, folder))
        self.folder = self.submitted.paths.folder
        self.watch = Watch(self.folder)

    def scale(self, nodes: int) -> None:
        scale_job(find_job(str(self.folder)), nodes)

    def trains_on(self, nodes: int) -> Event:
        """Waits until the newest attempt has that size and has committed a step of its own; returns its start."""

        def found() -> Event | None:
            events = self.watch.events()
            starts = [index for index, event in enumerate(events) if event["event"] == "attempt_start"]
            newest = events[starts[-1] :] if starts else []
            names = [event["event"] for event in newest]
            trains = "first_step" in names and "commit" in names[names.index("first_step") :]
            return newest[0] if trains and len(newest[0]["nodes"]) == nodes else None

        return self.watch.until(found, SIZE_S, f"attempt that trains on {nodes} nodes")

    def finish(self, reference: dict[int, str]) -> None:
        """Has it end; its weights are those of a run that nothing interrupts, as its gradients are whole numbers."""
        (self.folder / "finish").touch()
        assert self.submitted.result()["name"] == "done", self.watch.story()
        digests: dict[int, str] = {}
        for log in (self.folder / "log").glob("attempt-*/rank-0.log"):
            lines = [line.split() for line in log.read_text().splitlines() if " digest " in line]
            digests |= {int(step): digest for _, step, _, digest in lines}
        assert digests and all(reference[step] == digest for step, digest in digests.items()), self.watch.story()
        assert not memory_dir(local_run_id(self.folder)).exists()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LocalJob]:
    job = LocalJob(tmp_path)
    yield job
    if not job.watch.events("job_end"):
        cancel_job(find_job(str(job.folder)))


def test_it_grows_and_shrinks_as_asked_and_its_state_goes_from_memory_to_memory(
    job: LocalJob, steady_digests: dict[int, str]
) -> None:
    job.trains_on(2)
    for nodes in (4, 2, 3):
        job.scale(nodes)
        job.trains_on(nodes)
    ends = job.watch.events("attempt_end")
    # Of the two boosters that four nodes need, one may come later, in a resize of its own.
    assert len(ends) in (3, 4) and {event["outcome"] for event in ends} == {"resized"}, job.watch.story()
    restores = [(event["step"], event["tier"]) for event in job.watch.events("restore")[1:]]
    assert restores == [(event["step"], "memory") for event in ends], job.watch.story()
    assert not job.watch.events("fault") and not job.watch.events("backoff"), job.watch.story()
    job.finish(steady_digests)


def test_a_booster_that_is_lost_costs_what_a_lost_node_costs_and_the_next_one_comes(
    job: LocalJob, steady_digests: dict[int, str]
) -> None:
    job.trains_on(2)
    job.scale(3)
    lost = job.trains_on(3)["nodes"][2]
    kill_node(job.folder, lost)
    fault = job.watch.wait_for("fault", SIZE_S)
    assert (fault["kind"], fault["node"]) == ("node_lost", lost), job.watch.story()
    job.watch.wait_for("attempt_end", SIZE_S, outcome="resized", attempt=lambda number: number > 1)
    assert lost not in job.trains_on(3)["nodes"], job.watch.story()
    job.finish(steady_digests)
