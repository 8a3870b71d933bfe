"""Prints the lines of slurm.conf that elastic jobs need, and lints a site's slurm.conf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurm.conf import Remark, logical_lines, parameters
from slurm.preemption import BY_PARTITION, BY_QOS, MODES

GRACE_S = 60  # an agreed step and a save to memory take seconds
_BOOST = f"PartitionName=boost Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime={GRACE_S}"
_BASE = "PartitionName=base Nodes=ALL Default=YES PriorityTier=10 PreemptMode=OFF"


def elastic_lines() -> list[str]:
    """The lines for slurm.conf: one partition for jobs, and one below it for boosters."""
    return [f"PreemptType={BY_PARTITION}", "PreemptMode=REQUEUE", _BASE, _BOOST]


def lint_elastic(text: str) -> list[Remark]:
    """Lists what to change in a slurm.conf for elastic jobs.

    Args:
        text: the file's content. Included files have to be linted separately.
    """
    found = parameters(text)
    kind = found["preempttype"].value.lower() if "preempttype" in found else ""
    mode = found["preemptmode"].value.upper() if "preemptmode" in found else "OFF"
    remarks = []
    if kind not in (BY_PARTITION, BY_QOS):
        why = "Slurm preempts no job: a node that a booster has is not free for more urgent jobs before its time limit"
        remarks.append(_remark(found, "PreemptType", BY_PARTITION, why))
    if not {*mode.split(",")} & {*MODES}:
        why = "boosters are to end when their nodes are needed; one that is suspended looks as if it hung"
        remarks.append(_remark(found, "PreemptMode", "REQUEUE", why))
    if kind != BY_QOS:
        remarks += _of_partitions(list(_partitions(text, mode)))
    return remarks


@dataclass(frozen=True)
class _Partition:
    line: int
    name: str
    tier: int
    mode: str
    grace_s: int


def _partitions(text: str, mode: str) -> Iterator[_Partition]:
    """The partitions, each with what PartitionName=DEFAULT and the cluster's PreemptMode say."""
    defaults: dict[str, str] = {"preemptmode": mode}
    for number, line in logical_lines(text):
        words = dict(_words(line))
        name = words.pop("partitionname", "")
        if name.upper() == "DEFAULT":
            defaults |= words
        elif name:
            own = defaults | words
            tier, grace_s = (_number(own.get(key), default) for key, default in (("prioritytier", 1), ("gracetime", 0)))
            yield _Partition(number, name, tier, own["preemptmode"].upper(), grace_s)


def _of_partitions(partitions: list[_Partition]) -> Iterator[Remark]:
    highest = max((each.tier for each in partitions), default=0)
    boosters = [each for each in partitions if each.tier < highest and each.mode in MODES]
    if not boosters:
        why = "boosters need a partition of a lower PriorityTier than another, with PreemptMode=REQUEUE or CANCEL"
        yield Remark(line=0, parameter="PartitionName", got="", expected=_BOOST, why=why, needed=True)
    for each in boosters:
        if each.grace_s < GRACE_S:
            why = (
                "a booster that is preempted has this time to stop at an agreed step; after it, its nodes count as lost"
            )
            yield _of_partition(each, f"GraceTime={each.grace_s}", f"GraceTime={GRACE_S}", why)
    above = [each for each in partitions if any(each.tier > booster.tier for booster in boosters)]
    if boosters and not any(each.mode == "OFF" for each in above):
        for each in above:
            why = "the job itself is to be in a partition above its boosters that nobody preempts"
            yield _of_partition(each, f"PreemptMode={each.mode}", "PreemptMode=OFF", why)


def _of_partition(partition: _Partition, got: str, expected: str, why: str) -> Remark:
    name = f"PartitionName={partition.name}"
    return Remark(
        line=partition.line,
        parameter="PartitionName",
        got=f"{partition.name} ... {got}",
        expected=f"{name} ... {expected}",
        why=why,
        needed=False,
    )


def _remark(found: Mapping[str, object], parameter: str, expected: str, why: str) -> Remark:
    now = found.get(parameter.lower())
    return Remark(
        line=getattr(now, "line", 0),
        parameter=parameter,
        got=getattr(now, "value", ""),
        expected=f"{parameter}={expected}",
        why=why,
        needed=True,
    )


def _words(line: str) -> Iterator[tuple[str, str]]:
    for word in line.split():
        name, equals, value = word.partition("=")
        if equals:
            yield name.lower(), value.strip('"')


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default
