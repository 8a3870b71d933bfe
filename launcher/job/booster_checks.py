"""Checks, before an elastic job is submitted, that Slurm can start its boosters and can preempt them."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.env.containers import in_container
from launcher.errors import UsageError
from launcher.job.jobfile import JobSpec
from slurm import Slurm, SlurmError
from slurm.preemption import Boosters, Preemption
from slurm.time_limit import time_limit_min


def require_booster(spec: JobSpec) -> None:
    """Check that a job with sizes above `nodes` names a partition or QOS for its boosters.

    Raises:
        UsageError: the job names none; or it has checkpoints and runs in a container.
    """
    booster = spec.elastic.booster if spec.elastic else None
    if spec.most_boosters and not (booster and (booster.partition or booster.qos)):
        raise UsageError(
            "elastic.booster: missing, expected a preemptible partition or QOS "
            f"(booster: {{partition: NAME}}) for the nodes above nodes: {spec.nodes}; or leave max_nodes out"
        )
    if spec.most_boosters and spec.checkpoint and in_container(spec.slurm):
        raise UsageError(
            f"elastic: got sizes above nodes: {spec.nodes} and slurm.container_*, expected one of them: mpirun, which "
            "starts the checkpoint agents of several Slurm jobs, starts none in a container; leave max_nodes out"
        )


def check_boosters(spec: JobSpec, partition: str | None, qos: str | None) -> None:
    """Check that Slurm can preempt the job's boosters. Refuses nothing if Slurm does not answer.

    Args:
        spec: the job.
        partition: the job's own partition, or several, separated by commas; None for the site's default.
        qos: the job's own QOS; None for its account's default.

    Raises:
        UsageError: one line for each problem.
    """
    if not spec.most_boosters:
        return
    try:
        problems = list(booster_problems(spec, Preemption.read(Slurm()), partition, qos))
    except SlurmError:
        return
    if problems:
        raise UsageError("\n".join(f"elastic.booster.{problem}" for problem in problems))


def booster_problems(spec: JobSpec, preemption: Preemption, partition: str | None, qos: str | None) -> Iterator[str]:
    """The problems of a job's boosters, each as (key, problem).

    Args:
        spec: the job, with a size above `nodes`.
        preemption: the cluster's settings for preemption.
        partition, qos: see check_boosters().
    """
    options = spec.booster_options
    asked = str(options["partition"]) if "partition" in options else None
    base = partition_names(preemption, partition)
    boosters = Boosters(
        partition=asked,
        qos=str(options["qos"]) if "qos" in options else None,
        base_partitions=base,
        base_qos=qos,
        time_min=time_limit_min(str(options["time"])) if "time" in options else None,
        has_time="time" in options,
    )
    for key, problem in preemption.problems(boosters):
        yield f"{key}: {problem}"
    chosen = [each for each in preemption.partitions if each.name in (asked.split(",") if asked else base)]
    largest = max((len(each.nodes) for each in chosen), default=spec.booster_nodes)
    if largest < spec.booster_nodes:
        yield f"partition: has {largest} nodes, expected at least {spec.booster_nodes}, those of a booster"


def partition_names(preemption: Preemption, asked: str | None) -> tuple[str, ...]:
    """The partitions that a job asks for; the site's default partition if it names none."""
    if asked:
        return tuple(asked.split(","))
    return tuple(each.name for each in preemption.partitions if each.is_default)
