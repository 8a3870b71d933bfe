"""Elastic jobs on a real Slurm with accounts: fair share between two teams, and preemption by QOS.

The lines are those of docs/admin/elastic.md, for fewer nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from accounts import Accounts, missing
from elastic_job import GRACE_S, SIZE_S, ElasticJob, urgent
from slurm_kit import job_state

from slurm.testbed import TestCluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.faults,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]

ACCOUNTS = (
    "add account vision fairshare=60",
    "add account language fairshare=40",
    "add qos vision set GrpTRES=node=3",
    "add qos language set GrpTRES=node=3",
    "add qos boost set MaxTRESPA=node=3",
    "add qos scavenger set Priority=0 PreemptMode=requeue GraceTime=20",
    "modify qos normal set Preempt=scavenger Priority=100",
    "add user {user} account=vision",
    "add user {user} account=language",
    "modify user {user} set qos+=scavenger",
)
ENFORCED = {"AccountingStorageEnforce": "associations,limits,qos"}
FAIR_SHARE = {
    "PriorityType": "priority/multifactor",
    "PriorityDecayHalfLife": "7-0",
    "PriorityCalcPeriod": "1",  # minutes, and no shorter
    "PriorityWeightFairshare": "10000",
    "PriorityWeightAge": "1000",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1,preempt_youngest_first",
    "PartitionName": "\nPartitionName=".join(
        (
            "vision   Nodes=ALL AllowAccounts=vision   QOS=vision   PriorityTier=10 PreemptMode=OFF",
            "language Nodes=ALL AllowAccounts=language QOS=language PriorityTier=10 PreemptMode=OFF",
            "boost    Nodes=ALL QOS=boost PriorityTier=1 PreemptMode=REQUEUE GraceTime=20",
            "train    Nodes=ALL Default=YES PriorityTier=5 PreemptMode=REQUEUE GraceTime=10",
        )
    ),
}
BY_QOS = {"PreemptType": "preempt/qos"}
RECKONED_S = 150.0  # Slurm reckons shares once a minute


@pytest.fixture
def four(request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-accounts", nodes=4)
    try:
        accounts = Accounts(cluster)
        accounts.start(line.format(user=cluster.user) for line in ACCOUNTS)
        accounts.configure(ENFORCED | request.param)
        yield cluster
    finally:
        cluster.down()


def priority(job: ElasticJob, booster: str) -> int:
    """Slurm's, of a booster that waits."""
    argv = ["squeue", "--noheader", "--format=%Q", f"--jobs={booster}"]
    return int(job.cluster.run_as_user(argv, timeout_s=20).stdout.strip() or 0)


@pytest.mark.parametrize("four", [FAIR_SHARE], indirect=True, ids=["partitions"])
def test_the_team_that_has_used_less_of_its_share_has_its_booster_first(
    four: Any, steady_digests: dict[int, str]
) -> None:
    """The other team has asked for its own booster earlier, and has it as soon as there is a second node."""
    busy = [urgent(four, 1, "--account=vision", partition="vision") for _ in range(2)]
    pace = ("--pace-s", "0.2")
    jobs = {}
    for team in ("vision", "language"):
        options = {"partition": team, "account": team}
        jobs[team] = ElasticJob(four, four.home / team, nodes=1, slurm=options, args=pace, min_nodes=1, max_nodes=2)
        waits = lambda job=jobs[team]: job.boosters("PENDING") or None  # noqa: E731
        jobs[team].watch.until(waits, SIZE_S, "booster that waits")
    ((first, _),), ((second, _),) = (jobs[team].boosters("PENDING").items() for team in ("vision", "language"))
    assert int(first) < int(second)

    language, vision = jobs["language"], jobs["vision"]
    ranked = lambda: priority(language, second) > priority(vision, first) or None  # noqa: E731
    language.watch.until(ranked, RECKONED_S, "larger share left of the other team")
    four.run_as_user(["scancel", busy[0]])
    language.until_size(2)
    assert [*vision.boosters()] == [first] and job_state(four, first) == "PENDING", vision.watch.story()
    four.run_as_user(["scancel", busy[1]])
    vision.until_size(2)

    before = language.attempts + vision.attempts
    taker = urgent(four, 1, "--account=vision", partition="vision")
    language.watch.until(lambda: job_state(four, taker) == "RUNNING" or None, SIZE_S, "start of the urgent job")
    assert language.attempts + vision.attempts <= before + 1  # one booster, and no more
    assert len([*language.boosters("RUNNING"), *vision.boosters("RUNNING")]) == 1
    for job in jobs.values():
        assert job_state(four, job.job_id) == "RUNNING" and not job.watch.events("fault"), job.watch.story()
        job.finish(steady_digests)
        job.left_nothing()


@pytest.mark.parametrize("four", [BY_QOS], indirect=True, ids=["qos"])
def test_a_booster_is_preempted_for_a_job_of_a_higher_qos(four: Any, steady_digests: dict[int, str]) -> None:
    options = {"partition": "train", "account": "vision", "qos": "normal"}
    job = ElasticJob(four, four.home / "qos", slurm=options, booster={"qos": "scavenger"})
    grown = job.until_size(4)
    before = job.boosters("RUNNING")
    taker = urgent(four, 1, "--account=language", "--qos=normal", partition="train")
    leaving = job.watch.wait_for("node_leaving", SIZE_S)
    shrunk = job.until_size(3, grown["attempt"])
    job.watch.until(lambda: job_state(four, taker) == "RUNNING" or None, GRACE_S + 40, "start of the urgent job")
    kept = job.boosters("RUNNING")
    assert len(kept) == 1 and kept.items() < before.items(), job.watch.story()
    assert leaving["reason"] == "preempted" and leaving["node"] not in shrunk["nodes"], job.watch.story()
    four.run_as_user(["scancel", taker])
    job.until_size(4, shrunk["attempt"])
    ends = job.watch.events("attempt_end")
    assert {event["outcome"] for event in ends} == {"resized"} and not job.watch.events("fault"), job.watch.story()
    assert job.restores()[1:] == [(event["step"], "memory") for event in ends], job.watch.story()
    assert job_state(four, job.job_id) == "RUNNING"
    job.finish(steady_digests)
    job.left_nothing()
