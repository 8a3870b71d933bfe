"""An elastic job on a real Slurm that preempts by QOS, with slurmdbd. The lines are those of docs/admin/elastic.md."""

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
    "add account vision",
    "add account language",
    "add qos scavenger set Priority=0 PreemptMode=requeue GraceTime=20",
    "modify qos normal set Preempt=scavenger Priority=100",
    "add user {user} account=vision",
    "add user {user} account=language",
    "modify user {user} set qos+=scavenger",
)
BY_QOS = {"AccountingStorageEnforce": "associations,limits,qos", "PreemptType": "preempt/qos"}


@pytest.fixture
def four() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-accounts", nodes=4)
    try:
        accounts = Accounts(cluster)
        accounts.start(line.format(user=cluster.user) for line in ACCOUNTS)
        accounts.configure(BY_QOS)
        yield cluster
    finally:
        cluster.down()


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
