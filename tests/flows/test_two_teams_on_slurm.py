"""Four elastic jobs of two teams share a real Slurm of six nodes, by the lines of docs/admin/elastic.md."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from elastic_job import SIZE_S, ElasticJob, urgent
from site_conf import site_conf
from slurm_kit import ends_as, job_state

from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(900)]

# "Without accounts": each team owns three nodes, and boosters may be on all six.
OWN_NODES = {
    "PartitionName": "\nPartitionName=".join(
        (
            "vision   Nodes=n[1-3] PriorityTier=10 PreemptMode=OFF",
            "language Nodes=n[4-6] PriorityTier=10 PreemptMode=OFF",
            "boost    Nodes=n[1-6] PriorityTier=1  PreemptMode=REQUEUE GraceTime=20",
            "train    Nodes=ALL Default=YES PriorityTier=5 PreemptMode=REQUEUE GraceTime=10",
        )
    )
}
TEAMS = ("vision", "vision", "language", "language")


@pytest.fixture
def six() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-teams", nodes=6)
    try:
        with site_conf(cluster, **OWN_NODES):
            yield cluster
    finally:
        cluster.down()


class Teams:
    """The four jobs. Each has a base of one node and wants one booster; there are two nodes for them."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.jobs = tuple(
            ElasticJob(
                cluster,
                cluster.home / f"{team}-{number}",
                nodes=1,
                slurm={"partition": team},
                args=("--pace-s", "0.2"),
                min_nodes=1,
                max_nodes=2,
            )
            for number, team in enumerate(TEAMS)
        )

    def with_booster(self) -> dict[int, str]:
        """Job -> its booster that runs."""
        running = ((number, job.boosters("RUNNING")) for number, job in enumerate(self.jobs))
        return {number: next(iter(boosters)) for number, boosters in running if boosters}

    def until_grown(self, *numbers: int, after: dict[int, int]) -> None:
        """Waits until these jobs train on two nodes.

        Args:
            numbers: of the jobs.
            after: each job's number of attempts before.
        """
        for number in numbers:
            self.jobs[number].until_size(2, after[number] - 1)

    def until_boosters(self, among: set[int], count: int) -> set[int]:
        """Waits until that many of the jobs have a booster that runs; returns which."""

        def found() -> set[int] | None:
            there = {*self.with_booster()} & among
            return there if len(there) == count else None

        return set(self.jobs[0].watch.until(found, SIZE_S, f"{count} boosters of jobs {sorted(among)}"))

    def attempts(self) -> dict[int, int]:
        return {number: job.attempts for number, job in enumerate(self.jobs)}

    def until_running(self, number: str) -> None:
        runs = lambda: job_state(self.cluster, number) == "RUNNING" or None  # noqa: E731
        self.jobs[0].watch.until(runs, SIZE_S, f"start of the urgent job {number}")


def test_an_urgent_job_takes_boosters_only_and_they_return_to_all_jobs_in_turn(
    six: Any, steady_digests: dict[int, str]
) -> None:
    teams = Teams(six)
    everybody = {*range(len(TEAMS))}
    for job in teams.jobs:
        job.settle()
    first = teams.until_boosters(everybody, 2)
    teams.until_grown(*first, after=dict.fromkeys(everybody, 0))

    before, attempts = teams.with_booster(), teams.attempts()
    taker = urgent(six, 1, partition="language")
    teams.until_running(taker)
    kept = teams.with_booster()
    assert len(kept) == 1 and kept.items() < before.items(), (before, kept)  # one booster, and no more than that
    (taken,) = first - {*kept}
    assert [event["reason"] for event in teams.jobs[taken].watch.events("node_leaving")] == ["preempted"]
    teams.jobs[taken].until_size(1, attempts[taken] - 1)
    assert {n: a for n, a in teams.attempts().items() if n != taken} == {
        n: a for n, a in attempts.items() if n != taken
    }  # the other three have not noticed

    attempts = teams.attempts()
    six.run_as_user(["scancel", taker])
    second = teams.until_boosters(everybody - {*kept}, 1)
    assert second <= everybody - first, (first, second)  # the next one is of a job that has waited longer
    teams.until_grown(*second, after=attempts)

    attempts = teams.attempts()
    takers = [urgent(six, 1, partition=team) for team in sorted({*TEAMS})]
    for taker in takers:
        teams.until_running(taker)
    assert not teams.with_booster()
    six.run_as_user(["scancel", *takers])
    third = teams.until_boosters(everybody, 2)
    assert third == everybody - {*kept} - second, (kept, second, third)
    teams.until_grown(*third, after=attempts)

    for job in teams.jobs:
        job.tell("finish")
    for job, team in zip(teams.jobs, TEAMS, strict=True):
        job.finish(steady_digests)
        job.left_nothing()
        watch = job.watch
        outcomes = [event["outcome"] for event in watch.events("attempt_end")]
        assert outcomes == ["resized"] * (job.attempts - 1) + ["done"], watch.story()
        assert not watch.events("fault") and not watch.events("backoff"), watch.story()
        assert len(watch.events("job_start")) == 1 and not watch.events("takeover"), watch.story()
        assert len({event["nodes"][0] for event in watch.events("attempt_start")}) == 1, watch.story()
        resumed = [step for step, _ in job.restores()[-len(outcomes) + 1 :]] if len(outcomes) > 1 else []
        assert resumed == [event["step"] for event in watch.events("attempt_end")[:-1]], watch.story()
        watch.until(ends_as(six, job.job_id, "COMPLETED"), 60, "end of the epilog")
        shown = six.run_as_user(["scontrol", "show", "job", job.job_id], timeout_s=20).stdout
        assert "JobState=COMPLETED" in shown and "Restarts=0" in shown and f"Partition={team}" in shown, shown
