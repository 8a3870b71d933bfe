"""Which partitions and QOS boosters may be in; the lines of slurm.conf for elastic jobs."""

from __future__ import annotations

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


def partition(name: str, tier: int, mode: str = "OFF", nodes: tuple[str, ...] = NODES) -> Partition:
    return Partition(
        name=name, state="UP", is_default=name == "base", nodes=nodes, priority_tier=tier, preempt_mode=mode
    )


def qos(name: str, priority: int, preempts: tuple[str, ...] = (), mode: str = "CLUSTER") -> Qos:
    return Qos(name=name, priority=priority, preempts=preempts, preempt_mode=mode)


PARTITIONS = (
    partition("base", 10), partition("low", 5, "REQUEUE"), partition("boost", 1, "CANCEL"), partition("fixed", 1),
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


def test_the_lines_that_are_printed_have_no_remarks() -> None:
    assert lint_elastic("ClusterName=a\n" + "\n".join(elastic_lines())) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "PartitionName=train Nodes=ALL Default=YES\n",
            {"PreemptType=preempt/partition_prio": 0, "PreemptMode=REQUEUE": 0, "PartitionName=boost Nodes=ALL Pri": 0},
        ),
        ("PreemptType=preempt/qos\nPreemptMode=CANCEL\nPartitionName=train Nodes=ALL\n", {}),
        ("preempttype=preempt/qos\nPreemptMode=SUSPEND,GANG\n", {"PreemptMode=REQUEUE": 2}),
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
