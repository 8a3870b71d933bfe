"""Nodes that fall silent, and who supervises then, on a real Slurm: in the minority, in the majority, among two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from broken_job import EVERY
from supervised_job import SupervisedJob

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

LEFT = "leaving the job to another supervisor"


@pytest.fixture
def job(fault_cluster: Any, small_share: Path, request: pytest.FixtureRequest) -> SupervisedJob:
    """A job in mid-training, on a cluster with all its nodes."""
    job = SupervisedJob(fault_cluster, small_share / request.node.originalname[5:40], **getattr(request, "param", {}))
    job.settle()
    return job


def runner_log(job: SupervisedJob, node: str) -> str:
    return (job.watch.job_dir / "log" / f"runner-{node}.log").read_text()


@pytest.mark.parametrize("job", [{"nodes": 2, "spares": 1}], indirect=True, ids=["three_nodes"])
def test_supervisor_in_the_minority_is_followed_and_writes_nothing_more(
    job: SupervisedJob, steady_digests: dict[int, str]
) -> None:
    """It still sees the job's folder: it stops renewing its lease because two of three nodes do not answer."""
    batch_host = job.term.node
    takeover = job.taken_over(lambda: job.cluster.node_down(batch_host))
    assert takeover["predecessor"] == batch_host and takeover["node"] != batch_host, job.watch.story()
    job.watch.until(lambda: LEFT in job.supervisor_log or None, 30, "end of the supervisor that was cut off")
    job.cluster.node_up(batch_host)
    job.trains_to(max(job.digests()) + 3 * EVERY)

    job.finish(steady_digests)
    assert job.attempts == 1 and not job.watch.events("fault"), job.watch.story()
    assert job.terms_written == sorted(job.terms_written), "a supervisor wrote after its succession"


def test_supervisor_in_the_majority_stays_though_the_next_in_line_misses_it(
    job: SupervisedJob, steady_digests: dict[int, str]
) -> None:
    """The one that is cut off sees the lease renewed in the folder: its standby waits, and leaves with its runner."""
    cut_off = job.attempt["nodes"][0]  # the first in the succession
    comeback = job.recover(lambda: job.cluster.node_down(cut_off))
    assert (comeback.fault["kind"], comeback.fault["node"]) == ("node_lost", cut_off), job.watch.story()
    stands_by = lambda: "standing by for term 2" in runner_log(job, cut_off) or None  # noqa: E731
    job.watch.until(stands_by, 30, "standby on the node that is cut off")
    job.trains_to((comeback.recovery.step_resumed or 0) + 10 * EVERY)  # several times the lease

    job.finish(steady_digests)
    assert job.term.number == 1 and not job.watch.events("takeover"), job.watch.story()


@pytest.mark.parametrize("job", [{"nodes": 1, "spares": 1}], indirect=True, ids=["two_nodes"])
def test_of_two_nodes_the_one_that_is_left_goes_on(job: SupervisedJob, steady_digests: dict[int, str]) -> None:
    batch_host = job.term.node

    def power_failure() -> None:
        job.cluster.node_down(batch_host)
        job.cluster.crash_node(batch_host)

    takeover = job.taken_over(power_failure)
    assert takeover["predecessor"] == batch_host, job.watch.story()
    job.finish(steady_digests)
    assert job.attempts == 1 and not job.watch.events("fault"), job.watch.story()


@pytest.mark.parametrize("job", [{"nodes": 1, "spares": 1}], indirect=True, ids=["two_nodes"])
def test_of_two_nodes_that_hear_each_other_no_more_the_supervisor_s_goes_on(
    job: SupervisedJob, steady_digests: dict[int, str]
) -> None:
    """Neither can tell which of them is cut off; the lease decides, and the other one ends its workers."""
    batch_host, other = job.term.node, job.attempt["nodes"][0]
    comeback = job.recover(lambda: job.cluster.node_down(other))
    assert (comeback.fault["kind"], comeback.fault["node"]) == ("node_lost", other), job.watch.story()
    assert job.attempt["nodes"] == [batch_host], job.watch.story()
    job.watch.until(lambda: "standing by for term 2" in runner_log(job, other) or None, 30, "standby on the other")
    job.finish(steady_digests)
    assert job.term.number == 1, job.watch.story()
    assert json.loads((job.watch.job_dir / "result.json").read_text())["name"] == "done"
