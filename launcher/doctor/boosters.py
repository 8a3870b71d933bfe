"""Judges Slurm's partitions and QOS for elastic jobs and their boosters."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.job.booster_checks import booster_problems, partition_names
from launcher.job.jobfile import JobSpec
from lifecycle import Finding, Status
from slurm import Slurm, SlurmError
from slurm.preemption import BY_PARTITION, BY_QOS, Preemption, ends_jobs
from slurm.preemption_conf import GRACE_S

_LINES = "`holdfast node slurm-conf --elastic` prints the lines"
_LINT = "`holdfast node slurm-conf --elastic --lint slurm.conf` says what to change"


def judge_boosters(spec: JobSpec | None, slurm: Slurm) -> Iterator[Finding]:
    """Findings about boosters and about the job's own partition.

    Args:
        spec: the job; None for any.
        slurm: the cluster.
    """
    try:
        preemption = Preemption.read(slurm)
    except SlurmError as error:
        yield Finding(check="boosters", status=Status.UNKNOWN, measured=str(error), advice="ask an administrator")
        return
    if spec is None or not spec.most_boosters:
        yield _possible(preemption)
        return
    partition, qos = (_text(spec.slurm.get(name)) for name in ("partition", "qos"))
    expected = f"{spec.most_boosters} boosters that Slurm can take back"
    booster = spec.elastic.booster if spec.elastic else None
    problems = list(booster_problems(spec, preemption, partition, qos))
    if not (booster and (booster.partition or booster.qos)):
        problems.insert(0, "missing, expected a preemptible partition or QOS")
    for problem in problems:
        advice = f"change `elastic.booster` in the job file, or the cluster: {_LINT}"
        yield Finding(
            check="boosters",
            status=Status.CRITICAL,
            measured=f"elastic.booster: {problem}",
            expected=expected,
            advice=advice,
        )
    if problems:
        return
    where = ", ".join(f"{key} {value}" for key, value in spec.booster_options.items() if key in ("partition", "qos"))
    yield Finding(check="boosters", status=Status.OK, measured=where, expected=expected)
    if preemption.exempt_time:
        yield Finding(
            check="booster_exempt",
            status=Status.WARNING,
            measured=f"PreemptExemptTime={preemption.exempt_time}",
            expected="more urgent jobs get the nodes of boosters within their GraceTime",
            advice="a booster keeps its nodes for this time after its start; that may be the site's intention",
        )
    if preemption.type == BY_PARTITION:
        yield from _grace(preemption, _text(spec.booster_options.get("partition")) or partition)
        yield from _base(preemption, partition)


def _possible(preemption: Preemption) -> Finding:
    """A finding: whether an elastic job could grow here."""
    expected = "a partition or QOS that Slurm preempts, for elastic jobs"
    names = preemption.preemptible()
    row = Finding(check="boosters", status=Status.OK, measured=", ".join(names), expected=expected)
    if names:
        return row
    if preemption.type == BY_QOS and preemption.qos is None:
        measured = f"PreemptType={preemption.type}, and sacctmgr does not show the QOS"
        return Finding(check="boosters", status=Status.UNKNOWN, measured=measured, expected=expected)
    measured = f"none (PreemptType={preemption.type or 'not said'}): elastic jobs shrink here and do not grow"
    return Finding(check="boosters", status=Status.OK, measured=measured, expected=expected, advice=_LINES)


def _grace(preemption: Preemption, names: str | None) -> Iterator[Finding]:
    """A finding: whether a preempted booster has time to stop at an agreed step."""
    for each in preemption.partitions:
        if each.name not in partition_names(preemption, names):
            continue
        advice = f"GraceTime={GRACE_S} for partition {each.name}: else the nodes of a booster count as lost; {_LINT}"
        is_short = each.grace_time_s < GRACE_S
        status = Status.WARNING if is_short else Status.OK
        measured = f"{each.name}: GraceTime={each.grace_time_s}"
        yield Finding(
            check="booster_grace",
            status=status,
            measured=measured,
            expected=f"{GRACE_S} s or more",
            advice=advice if is_short else "",
        )


def _base(preemption: Preemption, names: str | None) -> Iterator[Finding]:
    """A finding: whether the job itself may be preempted, which ends all its boosters."""
    for each in preemption.partitions:
        if each.name not in partition_names(preemption, names):
            continue
        above = [other.name for other in preemption.preemptors(each)] if ends_jobs(each.preempt_mode) else []
        measured = f"{each.name}: PreemptMode={each.preempt_mode}"
        row = Finding(check="base_partition", status=Status.OK, measured=measured, expected="nobody preempts the job")
        if above:
            advice = f"choose a partition with PreemptMode=OFF, or set it for {each.name}; {_LINT}"
            measured += f", preempted by {', '.join(above)}"
            row = Finding(
                check=row.check, status=Status.WARNING, measured=measured, expected=row.expected, advice=advice
            )
        yield row


def _text(value: str | bool | None) -> str | None:
    return value if isinstance(value, str) else None
