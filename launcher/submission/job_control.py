"""Requests to a submitted job: its status, another number of nodes, save and end, cancel."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base.plain_file import read_json
from launcher.core.outcomes import FINAL, JobOutcome
from launcher.diagnosis.cause import find_slurms_cause
from launcher.errors import LauncherError, UsageError
from launcher.history.status import JobStatus
from launcher.history.steps import NodeSteps
from launcher.history.stored import StatusReader
from launcher.history.why import lost_story
from launcher.history.wording import plural
from launcher.job.registry import KnownJob
from launcher.job.scale_request import ScaleRequest
from launcher.job.stop_request import StopRequest
from launcher.scheduler import SCHEDULERS, scheduler
from launcher.submission.logs import log_ends

if TYPE_CHECKING:
    from launcher.job.jobfile import JobSpec

_WAIT_POLL_S = 0.5
_SIZES_SHOWN = 8
_SLURMS_STATE = re.compile(r"\bSlurm says ([A-Z_]+)")


def status_now(job: KnownJob, reader: StatusReader | None = None) -> JobStatus:
    """The job's status from its events, corrected by the scheduler's word.

    Args:
        job: the job.
        reader: reads its events; None for a new one. One that is kept reads only new events.

    Returns:
        The status. Its state is "lost" if the supervisor was killed, and so has written no last event. It is
        "unreadable" if the events cannot be read.
    """
    return corrected(job, by_events(job, reader or StatusReader(job.folder)))


class JobFollower:
    """Tells a job's status again and again. The scheduler is asked when the events tell of another state, or seldom.

    Args:
        job: the job.
    """

    def __init__(self, job: KnownJob) -> None:
        self._job = job
        self._reader = StatusReader(job.folder)
        self._told = self._corrected = JobStatus()  # by the events, and with the scheduler's answer
        self._asked_s = float("-inf")

    def status(self) -> JobStatus:
        told = by_events(self._job, self._reader)
        poll_s = scheduler(self._job.cluster).poll_s if self._job.cluster in SCHEDULERS else 0.0
        is_old = time.monotonic() - self._asked_s >= poll_s
        is_other = (told.state, told.elastic) != (self._told.state, self._told.elastic)
        if is_old or is_other:
            self._told, self._asked_s = told, time.monotonic()
            self._corrected = corrected(self._job, told)
            return self._corrected
        last = self._corrected
        now = replace(told, state=last.state, reason=last.reason, stop=last.stop)
        return replace(now, size=last.size, elastic=last.elastic)


def by_events(job: KnownJob, reader: StatusReader) -> JobStatus:
    """The status by the events and the steps of the nodes."""
    try:
        status = reader.status()
    except OSError as error:
        return JobStatus(state="unreadable", reason=f"{job.folder}/events.jsonl: {error.strerror}")
    steps = NodeSteps.read(job.folder, status.attempt) if status.state == "training" else None
    if steps is None:
        return status
    return replace(status, step=max(status.step, steps.step), node_steps=steps.nodes)


def corrected(job: KnownJob, status: JobStatus) -> JobStatus:
    """The status with what the scheduler, and requests in its folder, say."""
    if status.state in (*FINAL, "unreadable"):
        return status
    now = _now(job, status)
    if now.state != "lost":
        return now
    state = _SLURMS_STATE.search(now.reason or "")
    found = find_slurms_cause([line for _, lines in log_ends(job) for line in lines], state[1] if state else "")
    last_s = status.events[-1]["time"] if status.events else job.submitted_s
    story = lost_story(now.reason or "", found, time_s=last_s, attempt=now.attempt, step=now.step)
    return replace(now, why=(*now.why, story))


def _now(job: KnownJob, status: JobStatus) -> JobStatus:
    request = StopRequest.read(job.folder)
    if request is not None:
        if request.is_served and status.state in ("pending", "requeued"):
            return replace(status, state=JobOutcome.HALTED, reason="ended in the queue, as asked")
        status = replace(status, stop=str(request))
    if job.cluster in SCHEDULERS:  # else it is of another version, or somebody has written the job's files
        status = scheduler(job.cluster).corrected(job, status)
    return with_request(job, status)


def await_end(job: KnownJob, show: Callable[[JobStatus], None]) -> tuple[JobStatus, int]:
    """Wait for a job's end. A job that is requeued has not ended.

    Args:
        job: the job.
        show: called with the status now and then.

    Returns:
        The last status, and the exit code of the job's outcome; 1 for a job that is lost or cannot be read.
    """
    follower = JobFollower(job)
    while (status := follower.status()).state not in (*FINAL, "lost", "unreadable"):
        show(status)
        time.sleep(_WAIT_POLL_S)
    return status, JobOutcome(status.state).exit_code if status.state in FINAL else 1


def with_request(job: KnownJob, status: JobStatus) -> JobStatus:
    """A job that has not started has no event of a size that was requested already."""
    request = ScaleRequest.read(job.folder)
    if request is None or request.nodes is None or status.elastic is not None or status.attempt is not None:
        return status
    return replace(status, size=f"{plural(request.nodes, 'node')} requested by a user")


def cancel_job(job: KnownJob) -> str:
    """End a job for good.

    Returns:
        The result in words.

    Raises:
        UsageError: the job belongs to another user or to another cluster.
        LauncherError: the job could not be ended.
        SlurmError: Slurm refuses or does not answer.
    """
    _check_owner(job)
    state = status_now(job).state
    if state in (*FINAL, "lost"):
        return f"job {job.job_id} has ended already ({state})"
    scheduler(job.cluster).cancel(job)
    return f"job {job.job_id} cancelled"


def stop_job(job: KnownJob, at_step: int | None = None, at_s: float | None = None) -> str:
    """Have all ranks save at one step, then end the job for good. A job that waits in Slurm's queue is removed from it.

    Args:
        job: the job.
        at_step: stop at this step or later.
        at_s: stop at this time or later, in seconds since the epoch. A waiting job then stays in the queue.

    Returns:
        The result in words.

    Raises:
        UsageError: the job belongs to another user, or may wait in the queue of another cluster, or has no checkpoints.
        OSError: its folder cannot be written.
        SlurmError: Slurm refuses or does not answer.
    """
    _check_owner(job)
    status = status_now(job)
    if status.state in (*FINAL, "lost"):
        return f"job {job.job_id} has ended already ({status.state})"
    tiers = _tiers(job.folder)
    if tiers is not None and not tiers:
        raise UsageError(
            f"job {job.job_id}: its job file has no checkpoint section, so there is nothing that Holdfast can save; "
            f"`holdfast cancel {job.job_id}` ends it at once"
        )
    leaves_queue = at_step is None and at_s is None
    if leaves_queue:
        scheduler(job.cluster).check_here(job)
    request = StopRequest(host=socket.gethostname(), at_step=at_step, at_s=at_s)
    request.write(job.folder)
    if leaves_queue and scheduler(job.cluster).leave_queue(job):
        replace(request, is_served=True).write(job.folder)
        return f"job {job.job_id} has left the queue; it was not running, so there was nothing to save"
    lost = "; it keeps steps in memory only, which goes with the job" if tiers == {"memory"} else ""
    return f"job {job.job_id} saves and ends {request}; `holdfast status {job.job_id}` shows it{lost}"


def scale_job(job: KnownJob, nodes: int | None) -> str:
    """Have a job train on another number of nodes, as soon as it has that many.

    Args:
        job: the job.
        nodes: one of the sizes in its job file; None: leave the size to the job file again.

    Returns:
        The result in words.

    Raises:
        UsageError: the job belongs to another user, is not elastic, or does not allow this size.
        LauncherError: the job has ended.
        OSError: its folder cannot be written.
    """
    _check_owner(job)
    status = status_now(job)
    if status.state in (*FINAL, "lost"):
        again = "" if nodes is None else f" with -N {nodes}"
        raise LauncherError(f"job {job.job_id} has ended already ({status.state}); submit it again{again}")
    spec = _spec(job.folder)
    if spec.elastic is None:
        raise UsageError(
            f"job {job.job_id}: its job file has no elastic section, so it keeps its {spec.nodes} nodes; "
            "expected `elastic` with min_nodes and max_nodes, or sizes"
        )
    if nodes is not None and nodes not in spec.sizes:
        raise UsageError(f"job {job.job_id}: got {nodes} nodes, expected {_nearest(spec.sizes, nodes)}")
    ScaleRequest(host=socket.gethostname(), nodes=nodes).write(job.folder)
    when = "when it starts" if status.state in ("pending", "requeued") else "as soon as it can"
    size = "as many nodes as its job file allows" if nodes is None else plural(nodes, "node")
    return f"job {job.job_id} trains on {size} {when}; `holdfast status {job.job_id}` shows what it waits for"


def _spec(folder: Path) -> JobSpec:
    """The job from its supervisor's job.json; before there is one, from the submitted request."""
    from launcher.job.jobfile import JobSpec, read_job

    if (folder / "job.json").exists():
        return read_job(folder)
    from launcher.submission.request import read_request

    return JobSpec.from_json(read_request(folder))


def _nearest(sizes: Sequence[int], nodes: int) -> str:
    """The allowed sizes nearest to a size that is not allowed, in words."""
    below = [size for size in sizes if size < nodes][:1]
    above = [size for size in sizes if size > nodes][-1:]
    allowed = f"its sizes are {', '.join(map(str, sorted(sizes)[:_SIZES_SHOWN]))}"
    allowed += f", ... {sizes[0]}" if len(sizes) > _SIZES_SHOWN else ""
    return f"{' or '.join(map(str, below + above))}: {allowed}"


def _tiers(folder: Path) -> set[str] | None:
    """The tiers of a job, from job.json; empty without a checkpoint section, None before the job has started."""
    try:
        section = read_json(folder / "job.json")["checkpoint"]
    except (OSError, ValueError, KeyError):
        return None
    if not isinstance(section, dict):
        return set()
    return {"memory", *(name for name in ("nvme", "shared", "s3") if section.get(name))}


def _check_owner(job: KnownJob) -> None:
    """Raises UsageError for a job folder of another user, because it may name one of this user's jobs or processes."""
    owner = job.folder.stat().st_uid
    if owner != os.geteuid():
        raise UsageError(
            f"{job.folder}: belongs to uid {owner}, and we are {os.geteuid()}; only its owner may change or end the job"
        )
