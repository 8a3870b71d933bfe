"""A job's status with Slurm's word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import slurm as slurm_
from launcher.clusters.slurm.boosters import booster_name
from launcher.clusters.slurm.queue import why_it_waits
from launcher.core.outcomes import JobOutcome
from launcher.errors import UsageError
from launcher.history.status import JobStatus
from launcher.job.registry import KnownJob
from launcher.submission.logs import last_words
from slurm import Job, SlurmError
from slurm.records import QueuedJob


def in_queue(job: KnownJob, status: JobStatus) -> JobStatus:
    """The status of a job that has left no outcome, with Slurm's state of it."""
    if not job.job_id.replace("_", "", 1).isdigit():
        return status
    slurm = slurm_.Slurm()
    try:
        if other := elsewhere(job):
            return replace(status, reason=other)
        queued = slurm.job(job.job_id)
        waits = (
            why_it_waits(queued, slurm.nodes, slurm.config, slurm.limits_of)
            if queued is not None and queued.state == "PENDING"
            else None
        )
    except SlurmError as error:
        return replace(status, reason=f"Slurm does not answer: {error}")
    answer = "no longer knows it" if queued is None else f"says {queued.state}"
    if queued is not None and queued.cannot_write:
        answer = f"could not open its log in {job.folder}; submit it again when that folder can be written"
    return by_queue(status, queued, waits, lambda: f"{answer}; {last_words(job)}")


def by_queue(status: JobStatus, queued: Job | QueuedJob | None, waits: str | None, end: Callable[[], str]) -> JobStatus:
    """The status of a job that has left no outcome, with what Slurm says.

    Args:
        status: by the events.
        queued: the job in Slurm; None if Slurm does not know it.
        waits: why it is pending; None if it is not.
        end: how it has ended, in words; called if it has.
    """
    if queued is not None and queued.state == "CANCELLED":
        return replace(status, state=JobOutcome.CANCELLED, reason=None)
    if queued is None or queued.has_ended:
        return replace(status, state="lost", reason=f"it left no outcome and Slurm {end()}")
    if waits is not None:
        return replace(status, state="requeued" if status.attempt is not None else "pending", reason=waits)
    return replace(status, state="starting") if status.state == "pending" else status


def with_boosters(job: KnownJob, status: JobStatus) -> JobStatus:
    """The status with Slurm's present reasons for boosters in the queue. Events have a reason that alternates once."""
    now = status.elastic
    if now is None or all(booster.state != "queued" for booster in now.boosters) or elsewhere(job):
        return status
    try:
        found = slurm_.Slurm().jobs_named(booster_name(job.name, job.job_id))
    except SlurmError:
        return status  # those in the events are the newest that are known
    boosters = tuple(
        booster.in_slurm(found[booster.id].state, found[booster.id].reason) if booster.id in found else booster
        for booster in now.boosters
    )
    now = replace(now, boosters=boosters)
    return replace(status, size=now.text(), elastic=now)


def check_here(job: KnownJob) -> None:
    """Raises UsageError for a job of another cluster, because its id may name an unrelated job of this one."""
    if other := elsewhere(job):
        raise UsageError(other)


def elsewhere(job: KnownJob) -> str:
    """Says that a job belongs to another Slurm cluster; "" if it belongs to this one, or that is not known."""
    here = _cluster_name() if job.slurm_cluster else ""
    if here in ("", job.slurm_cluster):
        return ""
    theirs = job.slurm_cluster
    return f"job {job.job_id} belongs to cluster {theirs}, this is cluster {here}; run this on a login node of {theirs}"


@cache  # `logs -f` asks every two seconds
def _cluster_name() -> str:
    return slurm_.Slurm().cluster_name()
