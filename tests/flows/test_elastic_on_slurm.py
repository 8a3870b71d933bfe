"""A job that grows into free nodes by boosters, and gives them back one by one: on a real Slurm of six nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from elastic_job import GRACE_S, SIZE_S, ElasticJob, urgent
from slurm_kit import ends_as, job_state

from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(500)]


@pytest.fixture(scope="module")
def _six() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-elastic", nodes=6)
    yield cluster
    cluster.down()


@pytest.fixture
def six(_six: TestCluster) -> TestCluster:
    _six.restore()
    return _six


def resized_at(job: ElasticJob) -> list[int]:
    return [event["step"] for event in job.watch.events("attempt_end") if event["outcome"] == "resized"]


def test_it_grows_into_free_nodes_and_an_urgent_job_takes_one_of_them_for_a_while(
    six: Any, steady_digests: dict[int, str]
) -> None:
    job = ElasticJob(six, six.home / "urgent")
    grown = job.until_size(4)
    assert grown["nodes"][:2] == job.watch.events("attempt_start")[0]["nodes"], job.watch.story()
    before = job.boosters("RUNNING")
    assert sorted(before.values()) == sorted(grown["nodes"][2:]), job.watch.story()

    taker = urgent(six, 3)  # two nodes are free
    leaving = job.watch.wait_for("node_leaving", SIZE_S)
    resize = job.watch.wait_for("resize", SIZE_S, to=3)
    shrunk = job.until_size(3, grown["attempt"])
    job.watch.until(lambda: job_state(six, taker) == "RUNNING" or None, GRACE_S + 40, "start of the urgent job")
    assert len(job.boosters("RUNNING")) == 1 and job_state(six, job.job_id) == "RUNNING", job.watch.story()
    assert leaving["reason"] == "preempted" and leaving["node"] not in shrunk["nodes"], job.watch.story()
    assert shrunk["time"] - resize["time"] < GRACE_S

    six.run_as_user(["scancel", taker])
    job.until_size(4, shrunk["attempt"])
    assert not job.watch.events("fault"), job.watch.story()
    assert job.restores()[1:] == [(step, "memory") for step in resized_at(job)], job.watch.story()
    job.finish(steady_digests)
    job.watch.until(ends_as(six, job.job_id, "COMPLETED"), 60, "end of the base job")
    job.left_nothing()


def test_a_boosters_node_that_is_lost_costs_a_shrink_and_the_next_one_comes(
    six: Any, steady_digests: dict[int, str]
) -> None:
    job = ElasticJob(six, six.home / "lost")
    grown = job.until_size(4)
    lost = grown["nodes"][3]
    six.crash_node(lost)
    shrunk = job.until_size(3, grown["attempt"])
    fault = job.watch.wait_for("fault", 5)
    assert (fault["kind"], fault["node"]) == ("node_lost", lost), job.watch.story()
    assert lost not in shrunk["nodes"] and {tier for _, tier in job.restores()[1:]} == {"memory"}, job.watch.story()
    again = job.until_size(4, shrunk["attempt"])
    assert lost not in again["nodes"], job.watch.story()
    job.finish(steady_digests)


def test_a_booster_that_is_lost_in_the_middle_of_a_save_costs_nothing_that_was_committed(
    six: Any, steady_digests: dict[int, str]
) -> None:
    job = ElasticJob(six, six.home / "in-save", max_nodes=3)
    booster = job.until_size(3)["nodes"][2]
    before = job.attempt
    job.lose_agent(booster, in_protect=True)
    assert job.attempt == before, job.watch.story()  # agents alone, those of both jobs, were started again

    def lose_the_node() -> None:
        job.kill_agent_in_protect(booster)
        six.crash_node(booster)

    comeback = job.recover(lose_the_node)
    faults = job.watch.events("fault")  # another rank's lost connection may come first
    assert ("node_lost", booster) in [(fault["kind"], fault["node"]) for fault in faults], job.watch.story()
    assert comeback.recovery.restored_from == "memory" and comeback.lost_nothing_committed, job.watch.story()
    job.settle()
    job.finish(steady_digests)


def test_a_supervisor_killed_in_a_resize_is_followed_by_one_that_knows_its_boosters_and_ends_others(
    six: Any, steady_digests: dict[int, str]
) -> None:
    job = ElasticJob(six, six.home / "take-over")
    job.watch.wait_for("resize", SIZE_S)
    first = job.term
    argv = ["sbatch", "--parsable", f"--job-name={job.booster_name('b99')}", "--begin=now+1hour", "--output=/dev/null"]
    stray = str(six.run_as_user([*argv, "--wrap=sleep 1000"]).stdout.strip())
    job.signal_supervisor("KILL", first)
    job.watch.wait_for("takeover", SIZE_S)
    job.until_size(4)
    submitted = {event["allocation"]: event["job_id"] for event in job.watch.events("booster_submitted")}
    assert {*submitted} == {"b1", "b2"}, job.watch.story()
    assert {*job.boosters("RUNNING")} == {*submitted.values()}, job.watch.story()
    job.watch.until(ends_as(six, stray, "CANCELLED"), 60, "end of a booster that nobody knows")
    assert len(job.boosters("RUNNING", "PENDING")) == 2, job.watch.story()
    job.finish(steady_digests)
    job.left_nothing()


def test_a_supervisor_killed_as_it_submits_a_booster_is_followed_by_one_that_submits_it_once(
    six: Any, steady_digests: dict[int, str]
) -> None:
    job = ElasticJob(six, six.home / "submits")
    job.watch.wait_for("booster_asked", SIZE_S)
    job.signal_supervisor("KILL", job.term)
    job.watch.wait_for("takeover", SIZE_S)
    job.until_size(4)
    asked = [event["allocation"] for event in job.watch.events("booster_asked")]
    assert asked == ["b1", "b2"] and job.boosters_ever() == {"b1": 1, "b2": 1}, job.watch.story()
    job.finish(steady_digests)
    job.left_nothing()


def test_a_job_cancelled_in_a_resize_leaves_no_booster(six: Any) -> None:
    job = ElasticJob(six, six.home / "cancel")
    job.watch.wait_for("resize", SIZE_S)
    six.run_as_user(["scancel", job.job_id])
    job.watch.wait_for("job_end", 60, outcome="cancelled")
    job.left_nothing()
