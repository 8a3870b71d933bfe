"""The supervisor is lost, with its host or alone: another takes the job over in place, on a real Slurm."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broken_job import EVERY
from slurm_kit import ends_as, status
from supervised_job import TAKE_OVER_S, SupervisedJob

from slurm.testbed import TestCluster

# What a Python program that waits for its job gets.
RESULT = """
import json, sys
from launcher.clusters.slurm.submission import SupervisedSlurmJob
folder, job_id = sys.argv[1:]
print(json.dumps(SupervisedSlurmJob(folder=folder, job_id=job_id).result()))
"""

pytestmark = [pytest.mark.slurm, pytest.mark.faults]


@pytest.fixture
def job(fault_cluster: Any, small_share: Path, request: pytest.FixtureRequest) -> SupervisedJob:
    """A job in mid-training, on a cluster with all its nodes."""
    job = SupervisedJob(fault_cluster, small_share / request.node.originalname[5:40])
    job.settle()
    return job


def test_killed_then_frozen_supervisor(job: SupervisedJob, steady_digests: dict[int, str]) -> None:
    first = job.term
    takeover = job.taken_over(lambda: job.signal_supervisor("KILL", first))
    assert takeover["node"] == first.node, job.watch.story()  # its host lives: the batch script starts the next one

    frozen = job.term
    takeover = job.taken_over(lambda: job.signal_supervisor("STOP", frozen))
    assert takeover["node"] != frozen.node and takeover["predecessor"] == frozen.node, job.watch.story()
    job.signal_supervisor("CONT", frozen)
    told = "leaving the job to another supervisor"
    job.watch.until(lambda: told in job.supervisor_log or None, 30, "end of the supervisor that was frozen")
    job.lose_agent(job.attempt["nodes"][1])  # they were started by the first of the three supervisors
    job.trains_to(max(job.digests()) + 3 * EVERY)

    job.finish(steady_digests)
    assert not job.watch.events("fault") and not job.watch.events("node_out"), job.watch.story()
    assert job.attempts == 1 and len(job.watch.events("job_end")) == 1
    assert job.terms_written == sorted(job.terms_written), "a supervisor wrote after its succession"
    job.watch.until(ends_as(job.cluster, job.job_id, "COMPLETED"), 60, "job that its batch script has ended")


def test_batch_host_lost_and_then_the_host_of_its_successor(job: SupervisedJob, steady_digests: dict[int, str]) -> None:
    batch_host = job.term.node
    assert batch_host in job.attempt["spares"], "the batch host trains last"
    takeover = job.taken_over(lambda: job.cluster.crash_node(batch_host))
    assert takeover["predecessor"] == batch_host and job.attempts == 1, job.watch.story()
    assert not job.watch.events("fault"), job.watch.story()  # the workers never noticed
    job.watch.wait_for("node_out", 30, node=batch_host)

    second = job.term.node
    trained = second in job.attempt["nodes"]  # the first in the succession does, but another may be quicker
    if trained:
        comeback = job.recover(lambda: job.cluster.crash_node(second))
        assert (comeback.fault["kind"], comeback.fault["node"]) == ("node_lost", second), job.watch.story()
        assert (comeback.recovery.rung, comeback.recovery.restored_from) == ("spare", "memory"), job.watch.story()
        assert comeback.lost_nothing_committed, job.watch.story()
    else:
        job.taken_over(lambda: job.cluster.crash_node(second))
    assert job.attempts == 1 + trained, job.watch.story()
    assert job.term.number == 3 and job.term.node not in (batch_host, second)

    job.finish(steady_digests)
    job.watch.until(ends_as(job.cluster, job.job_id, "CANCELLED"), 60, "job that its supervisor has ended")
    folder = str(job.watch.job_dir)
    told = job.cluster.run_as_user([sys.executable, "-c", RESULT, folder, job.job_id], timeout_s=60).stdout
    result = json.loads(told)
    assert (result["name"], result["exit_code"]) == ("done", 0), told
    assert status(job.cluster, job.job_id)["state"] == "done"


@pytest.mark.parametrize("lose", [TestCluster.crash_node, TestCluster.node_down])
def test_successor_lost_before_any_runner_has_come_to_it(
    job: SupervisedJob, steady_digests: dict[int, str], lose: Callable[[TestCluster, str], None]
) -> None:
    """Nobody has ever obeyed the second term: the third follows it all the same. One that is cut off hears no majority
    and does not renew its lease."""
    batch_host = job.term.node
    job.cluster.crash_node(batch_host)
    job.watch.until(lambda: job.term.number == 2 or None, TAKE_OVER_S, "second term")
    second = job.term.node
    job.taken_over(lambda: lose(job.cluster, second))
    assert job.term.number == 3 and job.term.node not in (batch_host, second), job.watch.story()

    job.finish(steady_digests)
    assert len(job.watch.events("job_start")) == 1, job.watch.story()  # Slurm was not asked to start it again


def test_batch_host_that_was_cut_off_does_no_harm_when_it_comes_back(
    job: SupervisedJob, steady_digests: dict[int, str]
) -> None:
    batch_host = job.term.node
    job.taken_over(lambda: job.cluster.node_down(batch_host))
    told = "leaving the job to another supervisor"
    job.watch.until(lambda: told in job.supervisor_log or None, 30, "end of the supervisor that was cut off")
    job.watch.wait_for("node_out", 30, node=batch_host)
    job.cluster.node_up(batch_host)
    job.trains_to(max(job.digests()) + 10 * EVERY)

    job.finish(steady_digests)
    assert not job.watch.events("fault") and not job.watch.events("problem"), job.watch.story()
    assert job.attempts == 1
    assert [event["node"] for event in job.watch.events("node_out")] == [batch_host], job.watch.story()
    assert len(job.watch.events("job_end")) == 1
    assert json.loads((job.watch.job_dir / "result.json").read_text())["name"] == "done"
