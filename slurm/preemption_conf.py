"""Prints the lines of slurm.conf that elastic jobs need, and lints a site's slurm.conf."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurm.conf import Remark, Setting, logical_lines, parameters
from slurm.errors import SlurmError
from slurm.hostlist import expand
from slurm.preemption import BY_PARTITION, BY_QOS, ends_jobs

GRACE_S = 60  # an agreed step and a save to memory take seconds
_BOOST = f"PartitionName=boost Nodes=ALL PriorityTier=0 PreemptMode=REQUEUE GraceTime={GRACE_S}"
_DEFAULT = "PartitionName=DEFAULT PreemptMode=OFF"
_SHOW_QOS = "sacctmgr show qos format=Name,Priority,Preempt,PreemptMode,GraceTime"


def elastic_lines() -> list[str]:
    """The lines for slurm.conf: one partition for boosters, below all others.

    PriorityTier is 1 where it is not set, so no other line has to change. Without the line for DEFAULT the site's
    partitions would inherit PreemptMode=REQUEUE, and those of a higher tier would preempt those of a lower one.
    """
    return [
        "# above all other lines with PartitionName: their jobs are not preempted",
        _DEFAULT,
        "# anywhere",
        f"PreemptType={BY_PARTITION}",
        "PreemptMode=REQUEUE",
        "# below all other lines with PartitionName",
        _BOOST,
    ]


def lint_elastic(text: str) -> list[Remark]:
    """Lists what to change in a slurm.conf for elastic jobs.

    Args:
        text: the file's content. Included files have to be linted separately.
    """
    found = parameters(text)
    kind = found["preempttype"].value.lower() if "preempttype" in found else ""
    mode = found["preemptmode"].value.upper() if "preemptmode" in found else "OFF"
    partitions = list(_partitions(text, mode)) if kind != BY_QOS else []
    includes = any(line.lower().startswith("include ") for _, line in logical_lines(text))
    remarks = []
    if kind not in (BY_PARTITION, BY_QOS):
        why = "Slurm preempts no job: a node that a booster has is not free for more urgent jobs before its time limit"
        remarks.append(_remark(found, "PreemptType", BY_PARTITION, why))
    has_own_mode = any(each.is_explicit and ends_jobs(each.mode) for each in partitions)
    if not ends_jobs(mode) and (mode == "OFF" or not has_own_mode):
        why = "boosters are to end when their nodes are needed; one that is suspended looks as if it hung"
        remarks.append(_remark(found, "PreemptMode", "REQUEUE", why))
    remarks += _of_qos(found) if kind == BY_QOS else _of_partitions(partitions)
    remarks += _of_times(found)
    return [_in_an_included_file(remark) for remark in remarks] if includes else remarks


@dataclass(frozen=True)
class _Partition:
    """A partition. `nodes` is None if it has all nodes, or if they cannot be told from this file.

    `is_explicit`: whether its PreemptMode is not only that of the cluster.
    """

    line: int
    name: str
    tier: int
    mode: str
    is_explicit: bool
    grace_s: int
    nodes: frozenset[str] | None

    def outranks(self, other: _Partition) -> bool:
        return self.tier > other.tier and self.shares_nodes(other)

    def shares_nodes(self, other: _Partition) -> bool:
        return self.nodes is None or other.nodes is None or bool(self.nodes & other.nodes)


def _partitions(text: str, mode: str) -> Iterator[_Partition]:
    """The partitions, each with what PartitionName=DEFAULT and the cluster's PreemptMode say."""
    defaults: dict[str, str] = {}
    for number, line in logical_lines(text):
        words = dict(_words(line))
        name = words.pop("partitionname", "")
        if name.upper() == "DEFAULT":
            defaults |= words
        elif name:
            own = defaults | words
            yield _Partition(
                line=number,
                name=name,
                tier=_number(own.get("prioritytier", own.get("priority")), 1),  # Priority is the old name
                mode=own.get("preemptmode", mode).upper(),
                is_explicit="preemptmode" in own,
                grace_s=_number(own.get("gracetime"), 0),
                nodes=_nodes(own.get("nodes", "")),
            )


def _nodes(text: str) -> frozenset[str] | None:
    if not text or text.upper() == "ALL":
        return None
    try:
        return frozenset(expand(text))
    except SlurmError:
        return None


def _of_partitions(partitions: list[_Partition]) -> Iterator[Remark]:
    preempted = [each for each in partitions if ends_jobs(each.mode)]
    below = [each for each in preempted if any(other.outranks(each) for other in partitions)]
    boosters = [each for each in below if each.is_explicit] or below
    if not boosters:
        alone = [each for each in preempted if any(other.tier > each.tier for other in partitions)]
        why = "boosters need a partition of a lower PriorityTier than another, with PreemptMode=REQUEUE or CANCEL"
        if alone:
            why = f"no partition of a higher PriorityTier has nodes of {alone[0].name}: nobody can take them back"
        yield Remark(line=0, parameter="PartitionName", got="", expected=_BOOST, why=why, needed=True)
        return
    for each in boosters:
        if each.grace_s < GRACE_S:
            why = (
                "a booster that is preempted has this time to stop at an agreed step; after it, its nodes count as lost"
            )
            yield _of_partition(each, f"GraceTime={each.grace_s}", f"GraceTime={GRACE_S}", why)
    others = [each for each in partitions if each not in boosters]
    for each in others:
        if each in below:
            by = ", ".join(other.name for other in others if other.outranks(each))
            why = f"its jobs are ended for those of {by}, because it has the PreemptMode of the cluster"
            yield _of_partition(each, f"PreemptMode={each.mode}", "PreemptMode=OFF", why)
        beside = [booster for booster in boosters if each.shares_nodes(booster)]
        if beside and not any(each.outranks(booster) for booster in beside):
            names, tier = ", ".join(booster.name for booster in beside), beside[0].tier
            why = f"its jobs do not take nodes back from {names}, of PriorityTier {tier}"
            yield _of_partition(each, f"PriorityTier={each.tier}", f"PriorityTier={tier + 1}", why)
    above = [each for each in partitions if any(each.outranks(booster) for booster in boosters)]
    if not any(each.mode == "OFF" for each in above):
        for each in (each for each in above if each not in below or each in boosters):
            why = "the job itself is to be in a partition above its boosters that nobody preempts"
            yield _of_partition(each, f"PreemptMode={each.mode}", "PreemptMode=OFF", why)


def _of_qos(found: Mapping[str, Setting]) -> Iterator[Remark]:
    why = f"which QOS preempts which is not in this file: `{_SHOW_QOS}`; `holdfast doctor job.yaml` looks at it"
    yield _remark(found, "PreemptType", BY_QOS, why, needed=False)


def _of_times(found: Mapping[str, Setting]) -> Iterator[Remark]:
    exempt = found.get("preemptexempttime")
    if exempt is not None and exempt.value not in ("-1", "0", "00:00:00"):
        why = (
            "a booster is not preempted before it has run for this time, so a more urgent job waits up to that long; "
            "keep it if boosters are to have a minimum run time"
        )
        yield _remark(found, "PreemptExemptTime", exempt.value, why, needed=False)
    plugins = found.get("jobsubmitplugins")
    if plugins is not None and "require_timelimit" in plugins.value:
        why = "every booster needs a time limit here: `elastic.booster.time` in the job file"
        yield _remark(found, "JobSubmitPlugins", plugins.value, why, needed=False)


def _in_an_included_file(remark: Remark) -> Remark:
    """A setting that this file lacks may be in an included one."""
    if remark.line:
        return remark
    why = f"{remark.why}; this is not needed if an included file has it, which is not looked at"
    return Remark(**{**vars(remark), "why": why, "needed": False})


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


def _remark(found: Mapping[str, Setting], parameter: str, expected: str, why: str, *, needed: bool = True) -> Remark:
    now = found.get(parameter.lower())
    return Remark(
        line=now.line if now else 0,
        parameter=parameter,
        got=now.value if now else "",
        expected=f"{parameter}={expected}",
        why=why,
        needed=needed,
    )


def _words(line: str) -> Iterator[tuple[str, str]]:
    for word in line.split():
        name, equals, value = word.partition("=")
        if equals:
            yield name.lower(), value.strip('"')


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default
