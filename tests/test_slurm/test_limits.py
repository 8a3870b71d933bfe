"""Limits for which a job waits. The reasons are those in Slurm's library."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm import Job, Slurm
from slurm.command import Result
from slurm.limits import advice, exceeded, tres
from slurm.records import Partition

RECORDED = Path(__file__).with_name("recorded")
ASKED = "cpu=32,mem=250G,node=4,billing=32,gres/gpu=16,gres/gpu:a100=16"
FOR_EVER = "so it waits for ever: ask for less, or for another QOS"
HIGH = {"high": {"GrpTRES": "node=8", "MaxTRESPU": "gres/gpu=8,node=4", "MaxTRESPA": "mem=200G"}}


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("Resources", ""),
        ("Priority", ""),
        ("QOSMaxWallDurationPerJobLimit", "waits for ever: ask for less"),
        ("QOSMaxGRESPerNode", "waits for ever: ask for less"),
        ("AssocMaxNodePerJobLimit", "waits for ever: ask for less"),
        ("QOSMinGRES", "waits for ever: ask for less"),
        ("PartitionTimeLimit", "waits for ever: ask for less"),
        ("PartitionNodeLimit", "waits for ever: ask for less"),
        ("QOSNotAllowed", "waits for ever: name a QOS"),
        ("QOSGrpCPUMinutesLimit", "until Slurm forgets some of it"),
        ("AssocGrpGRESMinutes", "until Slurm forgets some of it"),
        ("AssocGrpNodeLimit", "sacctmgr show assoc tree"),
        ("AssocMaxJobsLimit", "sacctmgr show assoc tree"),
        ("QOSMaxJobsPerUserLimit", "it starts when others have ended"),
        ("QOSGrpJobsLimit", "it starts when others have ended"),
    ],
)
def test_each_kind_of_limit_has_its_advice(reason: str, told: str) -> None:
    assert (told in advice(reason, ASKED, dict)) and bool(advice(reason, ASKED, dict)) is bool(told)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "QOSMaxGRESPerUser",
            f"QOS high has MaxTRESPU gres/gpu=8,node=4, the job asks for gres/gpu=16, {FOR_EVER}",
        ),
        ("QOSGrpNodeLimit", "QOS high has GrpTRES node=8, for several jobs together: it starts when others have ended"),
        (
            "MaxMemoryPerAccount",
            f"QOS high has MaxTRESPA mem=200G, the job asks for mem=250G, {FOR_EVER}",
        ),
    ],
)
def test_a_job_that_is_alone_beyond_a_limit_of_several_is_told_so(reason: str, told: str) -> None:
    assert advice(reason, ASKED, lambda: HIGH) == told


@pytest.mark.parametrize(
    ("qos", "accounts", "told"),
    [
        ({"QOS q": {"MaxTRES": "node=4,gres/gpu=16"}}, {}, []),
        ({"QOS q": {"MaxTRESPU": "node=2"}}, {}, ["QOS q has MaxTRESPU node=2, the job asks for node=4"]),
        (
            {"QOS q": {"GrpTRES": "cpu=8,gres/gpu=8"}},
            {},
            ["QOS q has GrpTRES cpu=8,gres/gpu=8, the job asks for cpu=32,gres/gpu=16"],
        ),
        ({"QOS q": {"MaxTRESPerNode": "gres/gpu=4"}}, {}, []),
        (
            {"QOS q": {"MaxTRESPerNode": "gres/gpu=2"}},
            {},
            ["QOS q has MaxTRESPerNode gres/gpu=2, the job asks for gres/gpu=16 on node=4"],
        ),
        ({"QOS q": {"MaxWall": "1-00:00:00"}}, {}, []),
        ({"QOS q": {"MaxWall": "23:59:00"}}, {}, ["QOS q has MaxWall 23:59:00, the job asks for 1440 minutes"]),
        (
            {"QOS q": {"MinTRES": "gres/gpu:h100=8"}},
            {},
            ["QOS q has MinTRES gres/gpu:h100=8, the job asks for no gres/gpu:h100"],
        ),
        (
            {},
            {"user ann in account team": {"MaxTRES": "mem=100G"}, "account root": {"GrpTRES": "node=3"}},
            [
                "user ann in account team has MaxTRES mem=100G, the job asks for mem=250G",
                "account root has GrpTRES node=3, the job asks for node=4",
            ],
        ),
    ],
)
def test_a_limit_that_a_job_exceeds_by_itself_is_named(
    qos: dict[str, dict[str, str]], accounts: dict[str, dict[str, str]], told: list[str]
) -> None:
    assert exceeded(ASKED, 86400.0, qos, accounts) == told


def test_a_qos_overrides_the_same_limit_of_an_account_and_perhaps_that_of_another_qos() -> None:
    small, large = {"GrpTRES": "node=2"}, {"GrpTRES": "node=8"}
    assert exceeded(ASKED, None, {"QOS q": large}, {"account a": small}) == []
    assert exceeded(ASKED, None, {"QOS q": large, "QOS p": small}, {}) == []
    assert len(exceeded(ASKED, None, {"QOS q": small, "QOS p": small}, {})) == 2
    assert len(exceeded(ASKED, None, {"QOS q": {"GrpTRES": "cpu=64"}}, {"account a": small})) == 1


def test_a_job_without_a_time_limit_exceeds_none() -> None:
    assert exceeded(ASKED, None, {"QOS q": {"MaxWall": "01:00:00"}}, {}) == []


def test_resources_are_counted_in_one_unit() -> None:
    assert tres("cpu=4,mem=1.5G,gres/gpu:a100=2,node=1") == {
        "cpu": 4, "mem": 1.5 * 2**30, "gres/gpu:a100": 2, "node": 1,
    }  # fmt: skip
    assert tres("mem=1024") == tres("mem=1G") and tres("") == {}


def test_the_limits_of_a_job_are_those_of_its_own_qos_and_of_its_partitions() -> None:
    pending = (RECORDED / "job_pending.txt").read_text().replace("QOS=(null)", "QOS=normal")
    partitions = (RECORDED / "partitions.txt").read_text().replace("QoS=N/A", "QoS=small")

    def run(argv: list[str], **_: object) -> Result:
        qos = "normal|node=2||||||\nsmall||cpu=1||||node=1|\nother|node=1|node=1|||||\n"
        said = qos if argv[0] == "sacctmgr" else partitions
        return Result(argv=tuple(argv), returncode=0, stdout=said, stderr="", seconds=0.0)

    job = Job.parse(pending)
    assert (job.qos, job.asked) == ("normal", "cpu=4,mem=250G,node=4,billing=4")
    assert Partition.parse(partitions.splitlines()[0]).qos == "small"
    found = Slurm(run=run).limits_of(job)  # type: ignore[arg-type]
    assert found == {"normal": {"GrpTRES": "node=2"}, "small": {"MaxTRESPU": "cpu=1", "MinTRES": "node=1"}}


def test_the_limits_of_a_jobs_accounts_are_read_up_to_the_first() -> None:
    """The user's limit for one partition holds there. Those of other users do not count."""
    pending = (RECORDED / "job_pending.txt").read_text().replace("Account=(null)", "Account=team")
    rows = {
        "account=team": "||all|node=9|node=5||\nann||||node=1||\nnobody|||node=7|node=5||\nnobody|train|||node=2||\n",
        "account=all": "||root||||\n",
        "account=root": "||||||\nroot||||||\n",
    }

    def run(argv: list[str], **_: object) -> Result:
        said = next((row for where, row in rows.items() if where in argv), "ClusterName = c1\n")
        assert argv[0] == "scontrol" or "cluster=c1" in argv
        return Result(argv=tuple(argv), returncode=0, stdout=said, stderr="", seconds=0.0)

    job = Job.parse(pending)
    assert job.account == "team"
    assert Slurm(run=run).account_limits_of(job) == {  # type: ignore[arg-type]
        "user nobody in account team": {"MaxTRES": "node=2"}, "account team": {"GrpTRES": "node=9"},
        "account all": {}, "account root": {},
    }  # fmt: skip
