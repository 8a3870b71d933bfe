"""Which partitions and QOS boosters may be in; the lines of slurm.conf for elastic jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm import Slurm, SlurmError
from slurm.command import CommandError, Result
from slurm.preemption import Boosters, Preemption
from slurm.preemption_conf import elastic_lines, lint_elastic
from slurm.qos import Qos
from slurm.records import Partition

NODES = ("n1", "n2")


def partition(
    name: str, tier: int, mode: str = "OFF", nodes: tuple[str, ...] = NODES, max_time_s: float | None = None
) -> Partition:
    is_default = name == "base"
    return Partition(
        name=name, state="UP", is_default=is_default, nodes=nodes, priority_tier=tier, preempt_mode=mode,
        max_time_s=max_time_s,
    )  # fmt: skip


def qos(name: str, priority: int, preempts: tuple[str, ...] = (), mode: str = "CLUSTER") -> Qos:
    return Qos(name=name, priority=priority, preempts=preempts, preempt_mode=mode)


PARTITIONS = (
    partition("base", 10), partition("low", 5, "REQUEUE"), partition("boost", 1, "CANCEL", max_time_s=3600.0),
    partition("fixed", 1), partition("gang", 1, "GANG,REQUEUE"),
    partition("frozen", 1, "GANG,SUSPEND"), partition("top", 20, "REQUEUE"), partition("alone", 1, "REQUEUE", ("n9",)),
)  # fmt: skip
QOS = (
    qos("normal", 10, ("scavenger", "frozen", "eager")), qos("scavenger", 0), qos("eager", 50),
    qos("frozen", 0, mode="SUSPEND"), qos("robber", 1, ("normal",)), qos("king", 99, ("robber",)),
)  # fmt: skip
BY_PARTITION = Preemption(type="preempt/partition_prio", mode="REQUEUE", partitions=PARTITIONS)
BY_QOS = Preemption(type="preempt/qos", mode="REQUEUE", partitions=PARTITIONS, qos=QOS)


def problems(preemption: Preemption, **asked: Any) -> list[str]:
    where = {"partition": None, "qos": None, "base_partitions": ("base",), "base_qos": "normal"} | asked
    return [f"{key}: {problem}" for key, problem in preemption.problems(Boosters(**where))]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"partition": "boost"}, ""),
        ({"partition": "boost,low"}, ""),
        ({"partition": "low", "base_partitions": ("base", "top")}, ""),
        ({"partition": "bost"}, "partition: got 'bost', and Slurm has no such partition; did you mean boost?"),
        ({"partition": "fixed"}, "partition: got 'fixed', whose PreemptMode is OFF; expected one of low, boost"),
        ({"partition": "frozen"}, "partition: got 'frozen', whose PreemptMode is GANG,SUSPEND; expected one of low,"),
        ({"partition": "alone"}, "partition: got 'alone', and no partition on its nodes is of a higher PriorityTier"),
        ({"partition": "top"}, "partition: got 'top' of PriorityTier 20, which outranks the job's own partition, base"),
        (
            {"partition": "low", "base_partitions": ("base", "boost")},
            "partition: got 'low' of PriorityTier 5, which outranks the job's own partition, boost, of 1",
        ),
        ({"partition": "gang"}, ""),
        ({"partition": "boost", "time_min": 60, "has_time": True}, ""),
        (
            {"partition": "boost", "time_min": 61, "has_time": True},
            "time: got 61 minutes, expected 60 minutes at most, MaxTime of partition boost",
        ),
        ({"partition": "boost", "has_time": True}, "time: got no limit, expected 60 minutes at most"),
        ({"qos": "scavenger"}, "partition: got 'base', whose PreemptMode is OFF; expected one of low, boost"),
    ],
)
def test_boosters_of_partitions(asked: dict[str, Any], problem: str) -> None:
    found = problems(BY_PARTITION, **asked)
    assert len(found) == bool(problem) and all(each.startswith(problem) for each in found), found


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"qos": "scavenger"}, ""),
        ({"qos": "eager", "base_qos": None}, ""),
        ({"qos": "scavengr"}, "qos: got 'scavengr', and Slurm has no such QOS; did you mean scavenger?"),
        (
            {"partition": "boost"},
            "qos: missing, and Slurm preempts by QOS here (PreemptType=preempt/qos); expected",
        ),
        ({"qos": "king"}, "qos: got 'king', which no QOS preempts; expected one of normal, scavenger"),
        ({"qos": "frozen"}, "qos: got 'frozen', whose PreemptMode is SUSPEND; expected REQUEUE or CANCEL"),
        ({"qos": "robber"}, "qos: got 'robber', which preempts the job's own QOS, normal; expected one of"),
        ({"qos": "eager"}, "qos: got 'eager' of priority 50, which outranks the job's own QOS, normal, of 10"),
    ],
)
def test_boosters_of_qos(asked: dict[str, Any], problem: str) -> None:
    found = problems(BY_QOS, **asked)
    assert len(found) == bool(problem) and all(each.startswith(problem) for each in found), found


def test_where_slurm_preempts_nobody_or_keeps_no_accounts() -> None:
    (found,) = problems(Preemption(type="preempt/none", mode="OFF", partitions=PARTITIONS), partition="boost")
    assert found.startswith("partition: Slurm preempts no job here (PreemptType=preempt/none); `holdfast node slurm-")
    without_accounts = Preemption(type="preempt/qos", mode="REQUEUE", partitions=PARTITIONS)
    assert problems(without_accounts, qos="any") == []
    assert problems(Preemption(type="", mode="", partitions=PARTITIONS), partition="fixed") == []


def test_a_cluster_that_refuses_jobs_without_a_time_limit() -> None:
    strict = replace(BY_PARTITION, requires_time=True)
    (found,) = problems(strict, partition="boost")
    assert found.startswith("time: missing, and this cluster refuses jobs without a time limit")
    assert problems(strict, partition="boost", time_min=5, has_time=True) == []


class Answers:
    """Slurm's commands, as these answers have them; sacctmgr fails without one."""

    def __init__(self, accounts: str | None, storage: str) -> None:
        self.accounts = accounts
        self.config = f"AccountingStorageType   = {storage}\nPreemptMode = REQUEUE\nPreemptType = preempt/qos\n"
        self.asked: list[str] = []

    def __call__(self, argv: Any, **options: Any) -> Result:
        self.asked.append(argv[0])
        if argv[0] == "sacctmgr":
            result = Result(argv=tuple(argv), returncode=0, stdout=self.accounts or "", stderr="", seconds=0.0)
            if self.accounts is None:
                raise CommandError(result, "exit code 1")
            return result
        partitions = Path(__file__).with_name("recorded") / "partitions.txt"
        text = self.config if argv[2] == "config" else partitions.read_text()
        return Result(argv=tuple(argv), returncode=0, stdout=text, stderr="", seconds=0.0)


def test_slurm_is_asked_for_partitions_and_where_it_keeps_accounts_for_qos() -> None:
    slurm = Answers("normal|0||cluster\nlow|10|normal,x|cancel\n", "accounting_storage/slurmdbd")
    found = Preemption.read(Slurm(run=slurm))
    assert (found.type, found.mode) == ("preempt/qos", "REQUEUE")
    assert found.qos == (qos("normal", 0), qos("low", 10, ("normal", "x"), "CANCEL"))
    train, base, urgent = found.partitions
    assert (train.priority_tier, train.preempt_mode, train.grace_time_s) == (5, "REQUEUE", 10)
    assert (base.preempt_mode, urgent.priority_tier) == ("OFF", 10)
    assert found.preemptors(train) == (urgent,)

    assert Preemption.read(Slurm(run=Answers(None, "accounting_storage/slurmdbd"))).qos is None
    without = Answers("", "accounting_storage/none")
    assert Preemption.read(Slurm(run=without)).qos is None and "sacctmgr" not in without.asked


def test_reads_qos() -> None:
    found = [Qos.parse(line) for line in (Path(__file__).with_name("recorded") / "qos.txt").read_text().splitlines()]
    assert found[0] == qos("normal", 100, ("scavenger",)) and found[-1] == qos("scavenger", 0, mode="REQUEUE")
    by_qos = Preemption(type="preempt/qos", mode="REQUEUE", partitions=PARTITIONS, qos=tuple(found))
    assert by_qos.preemptible() == ("scavenger",)


@pytest.mark.parametrize("line", ["normal", "normal|x||cluster", "|0||cluster", "a|b|c|d|e"])
def test_what_is_no_qos_is_refused_with_the_text(line: str) -> None:
    with pytest.raises(SlurmError, match="sacctmgr printed"):
        Qos.parse(line)


SITE = ("ClusterName=a", "PartitionName=main Nodes=ALL Default=YES", "PartitionName=fast Nodes=ALL PriorityTier=9")


def test_the_lines_that_are_printed_have_no_remarks_and_change_no_other_partition() -> None:
    lines = elastic_lines()
    lines[lines.index("# anywhere") : lines.index("# anywhere")] = SITE
    assert lint_elastic("\n".join(lines)) == []


def test_lines_that_make_the_sites_own_jobs_preemptible_are_remarked() -> None:
    """Appended, the line for DEFAULT has no effect on the partitions above it: they inherit the cluster's mode."""
    remarks = lint_elastic("\n".join((*SITE, *elastic_lines())))
    assert {(remark.line, remark.expected) for remark in remarks} == {
        (2, "PartitionName=main ... PreemptMode=OFF"),
        (3, "PartitionName=fast ... PreemptMode=OFF"),
    }
    (main,) = (remark for remark in remarks if remark.line == 2)
    assert main.why == "its jobs are ended for those of fast, because it has the PreemptMode of the cluster"


BY_TIER = "PreemptType=preempt/partition_prio\n"
ABOVE = "PartitionName=base Nodes=ALL PriorityTier=10 PreemptMode=OFF\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{BY_TIER}PreemptMode=GANG,REQUEUE\n{ABOVE}PartitionName=boost Nodes=ALL GraceTime=60\n", ""),
        (f"{BY_TIER}PreemptMode=SUSPEND,GANG\n{ABOVE}PartitionName=b Nodes=ALL PreemptMode=REQUEUE GraceTime=60\n", ""),
        (f"{BY_TIER}PreemptMode=REQUEUE\n{ABOVE}PartitionName=b Nodes=ALL Priority=5 GraceTime=60\n", ""),
        (
            f"{BY_TIER}PreemptMode=REQUEUE\nPartitionName=base Nodes=n[1-2] PriorityTier=9 PreemptMode=OFF\n"
            "PartitionName=boost Nodes=n[3-4] GraceTime=60\n",
            "no partition of a higher PriorityTier has nodes of boost: nobody can take them back",
        ),
        (
            f"{BY_TIER}PreemptMode=REQUEUE\n{ABOVE}PartitionName=boost Nodes=ALL PreemptMode=REQUEUE GraceTime=60\n"
            "PartitionName=low Nodes=ALL PreemptMode=OFF\n",
            "its jobs do not take nodes back from boost, of PriorityTier 1",
        ),
        (
            f"{BY_TIER}PreemptMode=REQUEUE\nPreemptExemptTime=00:05:00\n{ABOVE}"
            "PartitionName=boost Nodes=ALL GraceTime=60\n",
            "a booster is not preempted before it has run for this time",
        ),
        (
            f"{BY_TIER}PreemptMode=REQUEUE\nJobSubmitPlugins=lua,require_timelimit\n{ABOVE}"
            "PartitionName=boost Nodes=ALL GraceTime=60\n",
            "every booster needs a time limit here: `elastic.booster.time`",
        ),
    ],
)
def test_legal_sites_have_no_remarks_and_those_that_cannot_work_have_one(text: str, why: str) -> None:
    remarks = lint_elastic(text)
    assert len(remarks) == bool(why) and all(remark.why.startswith(why) for remark in remarks), remarks


def test_what_an_included_file_may_have_is_not_needed() -> None:
    remarks = lint_elastic(f"{BY_TIER}PreemptMode=REQUEUE\nInclude partitions.conf\n")
    assert [(remark.parameter, remark.needed) for remark in remarks] == [("PartitionName", False)]
    assert "an included file" in remarks[0].why


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "PartitionName=train Nodes=ALL Default=YES\n",
            {"PreemptType=preempt/partition_prio": 0, "PreemptMode=REQUEUE": 0, "PartitionName=boost Nodes=ALL Pri": 0},
        ),
        (
            "PreemptType=preempt/qos\nPreemptMode=CANCEL\nPartitionName=train Nodes=ALL\n",
            {"PreemptType=preempt/qos": 1},
        ),
        (
            "preempttype=preempt/qos\nPreemptMode=SUSPEND,GANG\n",
            {"PreemptMode=REQUEUE": 2, "PreemptType=preempt/qos": 1},
        ),
        (
            "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
            "PartitionName=DEFAULT PreemptMode=OFF GraceTime=120 # for all\n"
            "PartitionName=a Nodes=ALL PriorityTier=2\nPartitionName=b Nodes=ALL\n",
            {"PartitionName=boost Nodes=ALL Pri": 0},
        ),
        (
            "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
            "PartitionName=a Nodes=ALL PriorityTier=2\nPartitionName=b \\\n Nodes=ALL GraceTime=5\n",
            {"PartitionName=b ... GraceTime=60": 4, "PartitionName=a ... PreemptMode=OFF": 3},
        ),
    ],
)
def test_what_a_slurm_conf_lacks_for_elastic_jobs(text: str, expected: dict[str, int]) -> None:
    remarks = lint_elastic(text)
    assert [remark.line for remark in remarks] == list(expected.values()), remarks
    assert all(r.expected.startswith(e) for r, e in zip(remarks, expected, strict=True)), remarks
    assert all(remark.why for remark in remarks)
