"""What is lost while the size of a job changes: a node of the base, the batch host, a booster, Slurm's controller."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from elastic_job import GRACE_S, SIZE_S, ElasticJob, urgent
from slurm_kit import ends_as, job_state

from slurm.testbed import TestCluster
from slurm.testbed.plan import CONTROLLER

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(500)]

LEAVE_S = 120.0  # for a runner without a supervisor: launcher/runner/runner.py
SILENT = "cannot get the state of the boosters"
TAKER = "takes-three-nodes"  # a job's name
BEGIN_S = 15  # the controller writes its state within 5 s


@pytest.fixture(scope="module")
def _six() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-losses", nodes=6)
    yield cluster
    cluster.down()


@pytest.fixture
def six(_six: TestCluster) -> TestCluster:
    _six.restore()
    return _six


def outcomes(job: ElasticJob) -> list[str]:
    return [event["outcome"] for event in job.watch.events("attempt_end")]


def other_base_node(job: ElasticJob) -> str:
    """The node of the base that is not the batch host."""
    (node,) = {*job.watch.events("attempt_start")[0]["nodes"]} - {job.term.node}
    return node


def test_a_node_of_the_base_is_lost_while_a_booster_leaves(six: Any, steady_digests: dict[int, str]) -> None:
    job = ElasticJob(six, six.home / "base-lost")
    grown = job.until_size(4)
    lost = other_base_node(job)
    taker = urgent(six, 3)  # two nodes are free
    leaving = job.watch.wait_for("node_leaving", SIZE_S)["node"]
    six.crash_node(lost)
    smaller = job.until_size(2, grown["attempt"])
    assert {*smaller["nodes"]} == {*grown["nodes"]} - {lost, leaving}, job.watch.story()
    assert [event["node"] for event in job.watch.events("fault") if event["kind"] == "node_lost"] == [lost]
    assert {tier for _, tier in job.restores()[1:]} == {"memory"}, job.watch.story()
    six.run_as_user(["scancel", taker])
    again = job.until_size(4, smaller["attempt"])  # a third booster has the place of the base's lost node
    assert lost not in again["nodes"] and job.term.number == 1, job.watch.story()
    job.finish(steady_digests)
    job.left_nothing(lost)


def test_the_batch_host_is_lost_in_a_resize(six: Any, steady_digests: dict[int, str]) -> None:
    job = ElasticJob(six, six.home / "host-lost")
    resize = job.watch.wait_for("resize", SIZE_S)
    lost, follower = job.term.node, other_base_node(job)
    six.crash_node(lost)
    takeover = job.watch.wait_for("takeover", SIZE_S)
    assert takeover["node"] == follower, job.watch.story()
    smaller = job.until_size(3, resize["attempt"])
    assert lost not in smaller["nodes"] and follower in smaller["nodes"], job.watch.story()
    assert {tier for _, tier in job.restores()[1:]} == {"memory"}, job.watch.story()
    assert job_state(six, job.job_id) == "RUNNING", job.watch.story()
    has_third = lambda: len(job.boosters("RUNNING", "PENDING")) == 3 or None  # noqa: E731
    job.watch.until(has_third, SIZE_S, "third booster, in place of the base's lost node")
    job.finish(steady_digests)
    job.left_nothing(lost)


def test_a_booster_dies_while_it_joins(six: Any, steady_digests: dict[int, str]) -> None:
    job = ElasticJob(six, six.home / "joining", max_nodes=3)

    def joins() -> str | None:
        there = [node for node in job.boosters("RUNNING").values() if node]
        return there[0] if there else None

    lost = job.watch.until(joins, SIZE_S, "booster that runs")
    six.crash_node(lost)
    ready = [event for event in job.watch.events("node_ready") if event["node"] == lost]
    assert not any(event["warm"] for event in ready), job.watch.story()
    grown = job.until_size(3)
    assert lost not in grown["nodes"], job.watch.story()
    assert {*outcomes(job)} <= {"resized"}, job.watch.story()  # no attempt was lost
    job.finish(steady_digests)


@contextmanager
def steps_held_back(cluster: TestCluster, nodes: Sequence[str]) -> Iterator[None]:
    """A job's batch script on these nodes runs meanwhile, and its srun waits: the job has no step."""
    folder = cluster.home / "held-back"
    folder.mkdir(exist_ok=True)
    srun, lock, waiting = Path("/usr/bin/srun"), folder / "lock", folder / "waits.sh"
    shutil.copy2(srun, folder)
    waiting.write_text(f'#!/bin/sh\nflock --shared {lock} true && exec {folder / srun.name} "$@"\n')
    waiting.chmod(0o755)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            for node in nodes:
                cluster.run_on_node(node, ["mount", "--bind", str(waiting), str(srun)])
            yield
        finally:
            for node in nodes:
                cluster.run_on_node(node, ["umount", "--lazy", str(srun)], check=False)


def test_a_booster_that_is_preempted_as_it_starts_is_not_trained_on(six: Any, steady_digests: dict[int, str]) -> None:
    """Slurm's SIGTERM goes to its steps, and it has none yet. So its runner never gets it."""
    with steps_held_back(six, six.nodes[2:]):
        job = ElasticJob(six, six.home / "unheard", max_nodes=3, slurm={"nodelist": ",".join(six.nodes[:2])})
        starts = lambda: job.boosters("RUNNING") or None  # noqa: E731
        ((first, _),) = job.watch.until(starts, SIZE_S, "booster that runs").items()
        taker = urgent(six, 4)  # three nodes are free
        job.watch.until(lambda: job.is_preempted(first) or None, SIZE_S, "preemption of the booster")
    job.watch.until(ends_as(six, taker, "RUNNING"), SIZE_S, "start of the urgent job")
    assert first not in job.boosters() and job.attempts == 1, job.watch.story()
    six.run_as_user(["scancel", taker])
    job.until_size(3)
    assert job.attempts == 2 and not job.watch.events("fault"), job.watch.story()
    job.finish(steady_digests)
    job.left_nothing()


def test_a_job_whose_boosters_are_taken_twice_has_them_back(six: Any, steady_digests: dict[int, str]) -> None:
    """The second time while the attempt with the boosters starts."""
    job = ElasticJob(six, six.home / "twice")
    grown = job.until_size(4)
    taker = urgent(six, 3)
    shrunk = job.until_size(3, grown["attempt"])
    six.run_as_user(["scancel", taker])
    larger = lambda event: event["attempt"] > shrunk["attempt"] and len(event["nodes"]) == 4  # noqa: E731
    starts = lambda: next(filter(larger, job.watch.events("attempt_start")), None)  # noqa: E731
    again = job.watch.until(starts, SIZE_S, "start of the larger attempt")
    taker = urgent(six, 4)  # both boosters
    smaller = job.until_size(2, again["attempt"])
    job.watch.until(ends_as(six, taker, "RUNNING"), GRACE_S + 40, "start of the urgent job")
    assert {*job.boosters("RUNNING")} == set(), job.watch.story()
    six.run_as_user(["scancel", taker])
    job.until_size(4, smaller["attempt"])
    assert not [event for event in job.watch.events("fault") if event["kind"] != "preempted"], job.watch.story()
    assert job_state(six, job.job_id) == "RUNNING" and not job.watch.events("backoff"), job.watch.story()
    job.finish(steady_digests)
    job.left_nothing()


def test_another_size_is_asked_for_while_the_size_changes(six: Any, steady_digests: dict[int, str]) -> None:
    """By a user, twice; and by Slurm and a user at once."""
    job = ElasticJob(six, six.home / "at-once")
    grown = job.until_size(4)
    job.scale(2)
    job.watch.wait_for("resize", SIZE_S, to=2)
    job.scale(3)
    three = job.until_size(3, grown["attempt"])
    taker = urgent(six, 4)  # three nodes are free
    job.watch.wait_for("node_leaving", SIZE_S, reason="preempted")
    job.scale(2)
    two = job.until_size(2, three["attempt"])
    six.run_as_user(["scancel", taker])
    job.scale(4)
    job.until_size(4, two["attempt"])
    assert {*outcomes(job)} == {"resized"} and not job.watch.events("fault"), job.watch.story()
    job.finish(steady_digests)
    job.left_nothing()


def saved_state(cluster: TestCluster) -> Path:
    """The file to which Slurm's controller writes its jobs. A controller that is killed forgets what is not in it."""
    return cluster.log_dir.parent / "machines" / "ctl" / "spool" / "job_state"


def controller_away(job: ElasticJob) -> None:
    """Kills Slurm's controller, and starts it again once the supervisor has missed it.

    A controller that has forgotten the start of the base would start it again.
    """
    begun, saved = job.watch.wait_for("job_start", SIZE_S)["time"], saved_state(job.cluster)
    job.watch.until(lambda: saved.stat().st_mtime > begun or None, SIZE_S, "start of the base in the saved state")
    missed = job.supervisor_log.count(SILENT)
    job.cluster.kill_daemon(CONTROLLER)
    job.watch.until(lambda: job.supervisor_log.count(SILENT) > missed or None, SIZE_S, "look at the boosters in vain")
    job.cluster.start_daemon(CONTROLLER)


def test_the_controller_is_away_while_boosters_start(six: Any, steady_digests: dict[int, str]) -> None:
    job = ElasticJob(six, six.home / "away-starting")
    job.watch.until(lambda: job.boosters("RUNNING") or None, SIZE_S, "booster that runs")
    controller_away(job)
    job.until_size(4)
    assert not job.watch.events("fault") and len(job.watch.events("job_start")) == 1, job.watch.story()
    job.finish(steady_digests)
    job.left_nothing()


def test_the_controller_is_away_while_boosters_are_wanted(six: Any, steady_digests: dict[int, str]) -> None:
    job = ElasticJob(six, six.home / "away-wanted")
    grown = job.until_size(4)
    job.scale(3)
    three = job.until_size(3, grown["attempt"])
    job.cluster.kill_daemon(CONTROLLER)
    job.scale(4)
    job.watch.wait_for("problem", SIZE_S, what="no booster can be asked for")
    job.cluster.start_daemon(CONTROLLER)
    job.until_size(4, three["attempt"])
    assert len(job.boosters("RUNNING", "PENDING")) == 2 and not job.watch.events("fault"), job.watch.story()
    job.finish(steady_digests)
    job.left_nothing()


def test_the_controller_is_away_while_a_booster_leaves(six: Any, steady_digests: dict[int, str]) -> None:
    job = ElasticJob(six, six.home / "away-leaving")
    grown = job.until_size(4)
    taker = urgent(six, 3, f"--job-name={TAKER}", f"--begin=now+{BEGIN_S}")
    saved = saved_state(six)
    job.watch.until(lambda: TAKER.encode() in saved.read_bytes() or None, BEGIN_S, "urgent job in the saved state")
    leaving = job.watch.wait_for("node_leaving", SIZE_S + BEGIN_S)["node"]
    controller_away(job)
    smaller = job.until_size(3, grown["attempt"])
    assert leaving not in smaller["nodes"], job.watch.story()
    job.watch.until(ends_as(six, taker, "RUNNING"), SIZE_S, "start of the urgent job")
    six.run_as_user(["scancel", taker])
    job.until_size(4, smaller["attempt"])
    # A controller that was away may refuse every further step of the job, which is then requeued.
    assert job_state(six, job.job_id) == "RUNNING", job.watch.story()
    job.finish(steady_digests)
    job.left_nothing()


def test_boosters_whose_base_is_killed_outright_leave(six: Any) -> None:
    """Nobody is left to end them, and none of them takes over: their runners leave on their own."""
    job = ElasticJob(six, six.home / "killed")
    base = job.until_size(4)["nodes"][:2]
    there = job.boosters("RUNNING")
    assert len(there) == 2
    for node in base:  # Slurm's own kill begins with a SIGTERM
        six.run_on_node(node, ["pkill", "-KILL", "-u", six.user])
    job.watch.until(ends_as(six, job.job_id, "FAILED"), 60, "end of the base")
    assert job.boosters("RUNNING") == there, job.watch.story()
    job.watch.until(lambda: None if job.boosters() else True, LEAVE_S + 60, "end of all boosters")
    assert not job.watch.events("takeover") and not job.watch.events("job_end"), job.watch.story()
    for node in there.values():
        left = ["pgrep", "-u", six.user, "-f", "launcher|ckpt"]
        gone = lambda node=node, left=left: six.run_on_node(node, left, check=False).returncode or None  # noqa: E731
        job.watch.until(gone, 60, f"end of all processes on {node}")
        assert not job.memory_on(node), job.memory_on(node)
