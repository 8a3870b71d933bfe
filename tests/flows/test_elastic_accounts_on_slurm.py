"""Elastic jobs on a real Slurm with slurmdbd: by the lines of docs/admin/elastic.md for two teams, and by QOS."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
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

PAGE = Path(__file__).resolve().parents[2] / "docs" / "admin" / "elastic.md"
BY_QOS_LINES = (
    "add account vision",
    "add account language",
    "add qos scavenger set Priority=0 PreemptMode=requeue GraceTime=20",
    "modify qos normal set Preempt=scavenger Priority=100",
    "add user {user} account=vision",
    "add user {user} account=language",
    "modify user {user} set qos+=scavenger",
)
BY_QOS = {"AccountingStorageEnforce": "associations,limits,qos", "PreemptType": "preempt/qos"}
# The page's cluster of 16 nodes, each team with 8 and at most 12 lent ones, on 4: each has 2, and at most 2 lent ones.
SMALLER = {"[1-16]": "[1-4]", "node=8": "node=2", "node=12": "node=2", "GraceTime=60": f"GraceTime={GRACE_S}"}
SHARES_S = 200.0  # Slurm counts what accounts have used once a minute at most


@contextmanager
def four_nodes(name: str, lines: Iterable[str], parameters: Mapping[str, str]) -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-{name}", nodes=4)
    try:
        accounts = Accounts(cluster)
        accounts.start(line.format(user=cluster.user) for line in lines)
        accounts.configure(parameters)
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def by_qos() -> Iterator[TestCluster]:
    with four_nodes("qos", BY_QOS_LINES, BY_QOS) as cluster:
        yield cluster


@pytest.fixture
def two_teams() -> Iterator[TestCluster]:
    """By the page, but that usage is counted as often as Slurm can."""
    page = PAGE.read_text()
    for sixteen, four in SMALLER.items():
        assert sixteen in page, f"{PAGE}: no {sixteen}"
        page = page.replace(sixteen, four)
    conf, sacctmgr = re.findall(r"^```\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)[:2]
    pairs = [line.split("=", 1) for line in conf.splitlines() if line and not line.startswith("AccountingStorageT")]
    partitions = "\nPartitionName=".join(value for name, value in pairs if name == "PartitionName")
    parameters = dict(pairs) | {"PartitionName": partitions, "PriorityCalcPeriod": "1"}
    parameters["SchedulerParameters"] += ",batch_sched_delay=0,sched_interval=1,bf_interval=1"
    del parameters["AccountingStorageHost"]
    lines = [line.removeprefix("sacctmgr -i ") for line in sacctmgr.splitlines()]
    with four_nodes("shares", [re.sub("user (ann|bob)", "user {user}", line) for line in lines], parameters) as cluster:
        yield cluster


class Team(ElasticJob):
    """An elastic job on one node of its team's, with up to three boosters. It saves often, and takes its time."""

    def __init__(self, cluster: Any, team: str) -> None:
        options = {"partition": team, "account": team}
        super().__init__(cluster, cluster.home / team, nodes=1, slurm=options, args=("--pace-s", "0.2"), min_nodes=1)

    def waits(self) -> dict[str, tuple[int, str]]:
        """Its boosters in the queue: number -> priority and Slurm's reason."""
        return {job: (int(priority), reason) for job, (_, priority, reason) in self.listed("PENDING").items()}


def test_two_teams_share_by_quota_and_fair_share(two_teams: Any, steady_digests: dict[int, str]) -> None:
    four = two_teams
    vision = Team(four, "vision")
    until, story = vision.watch.until, vision.watch.story
    grown = vision.until_size(3)  # of four nodes, as it may borrow two
    attempts = vision.attempts
    until(lambda: "MaxNodePerAccount" in str(vision.waits()) or None, SIZE_S, "booster beyond what may be borrowed")
    (oldest,) = vision.waits()

    language = Team(four, "language")
    language.settle()  # on the fourth node
    until(lambda: len(language.waits()) == 3 or None, SIZE_S, "boosters of the other team")
    assert vision.attempts == attempts and len(vision.boosters("RUNNING")) == 2, story()

    beyond = urgent(four, 2, "--account=language", partition="language")  # with the base it would be three nodes
    ask = ["squeue", "--noheader", "--format=%r", f"--jobs={beyond}"]
    until(lambda: "QOSGrpNode" in four.run_as_user(ask).stdout or None, SIZE_S, "job beyond its team's quota")
    before = vision.boosters("RUNNING")
    taker = urgent(four, 1, "--account=language", partition="language")
    until(lambda: job_state(four, taker) == "RUNNING" or None, SIZE_S, "start of the urgent job")
    shrunk = vision.until_size(2, grown["attempt"])
    kept = vision.boosters("RUNNING")
    assert len(kept) == 1 and kept.items() < before.items(), story()
    assert job_state(four, beyond) == "PENDING" and not language.watch.events("resize"), story()
    four.run_as_user(["scancel", beyond])

    def is_poorer() -> bool | None:
        """Whether Slurm puts the team that has borrowed much behind the other, though it has waited longer."""
        mine, others = vision.waits(), language.waits()
        assert oldest in mine and int(oldest) < min(map(int, others))
        return max(priority for priority, _ in mine.values()) < min(value for value, _ in others.values()) or None

    until(is_poorer, SHARES_S, "share of the other team that counts for more")
    four.run_as_user(["scancel", taker])
    lent = language.until_size(2)
    assert len(vision.boosters("RUNNING")) == 1 and vision.attempts == attempts + 1, story()

    language.finish(steady_digests)
    again = vision.until_size(3, shrunk["attempt"])
    assert grown["nodes"][0] == again["nodes"][0] and len(lent["nodes"]) == 2
    for job in (vision, language):
        assert not job.watch.events("fault") and not job.watch.events("backoff"), job.watch.story()
    vision.finish(steady_digests)
    vision.left_nothing()


def test_a_booster_is_preempted_for_a_job_of_a_higher_qos(by_qos: Any, steady_digests: dict[int, str]) -> None:
    four = by_qos
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
