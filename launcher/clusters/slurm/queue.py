"""Describes why a job waits in Slurm's queue, and what a user can do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from slurm.limits import QosLimits, advice, exceeded
from slurm.requeue import requeue_delay

if TYPE_CHECKING:
    from slurm import Job, Node, Slurm

_FOR_NODES = ("DOWN", "DRAINED", "UnavailableNodes")  # parts of Slurm's reason if too few nodes are available
_NAMED = 8
_NO_ENVIRONMENT = (
    "Slurm could not run the login shell of the job's user on the node, which it does for --export=NONE and "
    "--export=ALL,NAME=VALUE: leave out `slurm: {export: ...}` and name the variables in `env:`, or give the user a "
    "shell that ends within 120 s there"
)


def why_it_waits(
    job: Job,
    nodes: Callable[[], Iterable[Node]],
    config: Callable[[], Mapping[str, str]],
    limits: Callable[[Job], QosLimits],
) -> str:
    """The reason in one line.

    Args:
        job: a pending job.
        nodes: returns the cluster's nodes. Called only if the job waits for nodes that are out of service.
        config: returns the controller's configuration. Called only if the job waits after a requeue.
        limits: returns the limits of the job's QOS. Called only if the job waits for one.

    Raises:
        SlurmError: Slurm does not answer.
    """
    kind, colon, names = job.reason.partition(":")
    reason = f"{kind.replace('_', ' ')}{colon}{names}" or "no reason given"
    text = f"waits in the queue: {reason}"
    if "user env retrieval" in reason:  # held since 25.05; older ones went on without it
        text += f"; {_NO_ENVIRONMENT}, then scontrol release {job.id}"
    elif "held" in reason.lower():  # JobHeldAdmin, launch_failed_requeued_held: a Prolog failed, say
        text += f"; Slurm holds it until somebody releases it: sinfo -R names sick nodes, scontrol release {job.id}"
    if kind == "BeginTime" and job.restarts:
        seconds, setting = requeue_delay(config())
        text += f"; Slurm delays a requeued job by {seconds} s here ({setting})"
    if about := advice(kind, job.asked, lambda: limits(job)):
        text += f"; {about}"
    if any(word in reason for word in _FOR_NODES):
        sick = [node for node in nodes() if _is_out(node) and {*job.partition.split(",")} & {*node.partitions}]
        text += "".join(f"; {node.name}: {node.reason or node.state}" for node in sick[:_NAMED])
        text += f"; and {len(sick) - _NAMED} more: sinfo -R" if len(sick) > _NAMED else ""
    return text


def never_starts(slurm: Slurm, job_id: str) -> list[str]:
    """The limits of its QOS and accounts for which a pending job waits for ever, a line for each.

    Slurm accepts such a job, because an administrator may raise a limit, and names the limit when it next schedules.
    Empty where the site enforces no limits, and for a job in several partitions, each of which may have a QOS.

    Raises:
        SlurmError: Slurm or its accounting does not answer.
    """
    enforced = slurm.config().get("AccountingStorageEnforce", "").lower().split(",")
    job = slurm.job(job_id) if {"limits", "safe"} & {*enforced} else None
    if job is None or job.state != "PENDING" or "," in job.partition:
        return []
    qos = {f"QOS {name}": columns for name, columns in slurm.limits_of(job).items()}
    return exceeded(job.asked, job.time_left_s, qos, slurm.account_limits_of(job))


def _is_out(node: Node) -> bool:
    return bool(node.flags & {"DRAIN", "FAIL"}) or not node.responds
