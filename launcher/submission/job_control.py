"""Requests to a submitted job: its status, another number of nodes, save and end, cancel."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.base.plain_file import open_plain, read_json
from launcher.core.outcomes import FINAL, JobOutcome
from launcher.diagnosis.cause import find_slurms_cause
from launcher.errors import LauncherError, UsageError
from launcher.history.outcome import Outcome
from launcher.history.status import JobStatus
from launcher.history.steps import NodeSteps
from launcher.history.stored import StatusReader
from launcher.history.why import lost_story
from launcher.history.wording import plural
from launcher.job.registry import KnownJob
from launcher.job.scale_request import ScaleRequest
from launcher.job.stop_request import StopRequest
from launcher.job.supervisor_process import Process
from launcher.submission.queue import why_it_waits

if TYPE_CHECKING:
    from launcher.job.jobfile import JobSpec
    from slurm.records import Job, QueuedJob

_CANCEL_DEADLINE_S = 30.0
_LAST_BYTES = 64 << 10
_WAIT_POLL_S = 0.5
_SLURM_POLL_S = 5.0  # between two questions to Slurm about the same job
_SIZES_SHOWN = 8
_SLURMS_STATE = re.compile(r"\bSlurm says ([A-Z_]+)")


def status_now(job: KnownJob, reader: StatusReader | None = None) -> JobStatus:
    """The job's status from its events, corrected by the state of its process or of its Slurm job.

    Args:
        job: the job.
        reader: reads its events; None for a new one. One that is kept reads only new events.

    Returns:
        The status. Its state is "lost" if the supervisor was killed, and so has written no last event. It is
        "unreadable" if the events cannot be read.
    """
    return corrected(job, by_events(job, reader or StatusReader(job.folder)))


class JobFollower:
    """Tells a job's status again and again. Slurm is asked when the events tell of another state, or every few seconds.

    Args:
        job: the job.
    """

    def __init__(self, job: KnownJob) -> None:
        self._job = job
        self._reader = StatusReader(job.folder)
        self._told = self._corrected = JobStatus()  # by the events, and with Slurm's answer
        self._asked_s = float("-inf")

    def status(self) -> JobStatus:
        told = by_events(self._job, self._reader)
        is_old = time.monotonic() - self._asked_s >= _SLURM_POLL_S
        is_other = (told.state, told.elastic) != (self._told.state, self._told.elastic)
        if is_old or is_other or self._job.cluster != "slurm":
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
    """The status with what the job's process, Slurm, and requests in its folder say."""
    if status.state in (*FINAL, "unreadable"):
        return status
    now = _now(job, status)
    if now.state != "lost":
        return now
    state = _SLURMS_STATE.search(now.reason or "")
    found = find_slurms_cause([line for _, lines in _log_ends(job) for line in lines], state[1] if state else "")
    last_s = status.events[-1]["time"] if status.events else job.submitted_s
    story = lost_story(now.reason or "", found, time_s=last_s, attempt=now.attempt, step=now.step)
    return replace(now, why=(*now.why, story))


def _now(job: KnownJob, status: JobStatus) -> JobStatus:
    request = StopRequest.read(job.folder)
    if request is not None:
        if request.is_served and status.state in ("pending", "requeued"):
            return replace(status, state=JobOutcome.HALTED, reason="ended in the queue, as asked")
        status = replace(status, stop=str(request))
    if job.cluster == "slurm":
        return with_slurms_word(job, with_request(job, _in_queue(job, status)))
    process = Process.read(job.folder)
    if process is not None and not process.alive():
        if (outcome := Outcome.read(job.folder)) is not None:  # a job that was cancelled early has no events
            return replace(status, state=outcome.name, reason=outcome.reason)
        return replace(status, state="lost", reason=f"its supervisor is gone; {last_words(job)}")
    return status


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


def with_slurms_word(job: KnownJob, status: JobStatus) -> JobStatus:
    """The status with Slurm's present reasons for boosters in the queue. Events have a reason that alternates once."""
    now = status.elastic
    if now is None or all(booster.state != "queued" for booster in now.boosters) or _elsewhere(job):
        return status
    from launcher.scheduler.boosters import booster_name
    from slurm import Slurm, SlurmError

    try:
        found = Slurm().jobs_named(booster_name(job.name, job.job_id))
    except SlurmError:
        return status  # those in the events are the newest that are known
    boosters = tuple(
        booster.in_slurm(found[booster.id].state, found[booster.id].reason) if booster.id in found else booster
        for booster in now.boosters
    )
    now = replace(now, boosters=boosters)
    return replace(status, size=now.text(), elastic=now)


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
    if job.cluster == "slurm":
        from launcher.submission.slurm import cancel

        _check_cluster(job)
        cancel(job.job_id)
    else:
        _cancel_local(job)
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
    leaves_queue = job.cluster == "slurm" and at_step is None and at_s is None
    if leaves_queue:
        _check_cluster(job)
    request = StopRequest(host=socket.gethostname(), at_step=at_step, at_s=at_s)
    request.write(job.folder)
    if leaves_queue and _leave_queue(job):
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


def _leave_queue(job: KnownJob) -> bool:
    """Remove a waiting job from Slurm's queue. Returns whether it did; a started job is left to its supervisor."""
    from slurm import Slurm

    slurm = Slurm()
    queued = slurm.job(job.job_id)
    if queued is None or queued.state != "PENDING":
        return False
    slurm.cancel_pending(job.job_id)
    queued = slurm.job(job.job_id)
    return queued is None or queued.state == "CANCELLED"


def last_words(job: KnownJob) -> str:
    """The log that may show why a supervisor died, and its last line."""
    for path, lines in _log_ends(job):
        return f"{path} ends with: {lines[-1]}"
    return f"{job.folder} holds no log"


def _log_ends(job: KnownJob) -> Iterator[tuple[Path, list[str]]]:
    """The logs that may show why a supervisor died, each with its last lines that are not empty."""
    for name in (f"{job.job_id}_0_log.err", "log/supervisor.log"):
        path = job.folder / name
        try:
            with open_plain(path) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            continue
        if spoken := [line.strip() for line in lines if line.strip()]:
            yield path, spoken


def _check_owner(job: KnownJob) -> None:
    """Raises UsageError for a job folder of another user, because it may name one of this user's jobs or processes."""
    owner = job.folder.stat().st_uid
    if owner != os.geteuid():
        raise UsageError(
            f"{job.folder}: belongs to uid {owner}, and we are {os.geteuid()}; only its owner may change or end the job"
        )


def _check_cluster(job: KnownJob) -> None:
    """Raises UsageError for a job of another cluster, because its id may name an unrelated job of this one."""
    if elsewhere := _elsewhere(job):
        raise UsageError(elsewhere)


def _elsewhere(job: KnownJob) -> str:
    """Says that a job belongs to another Slurm cluster; "" if it belongs to this one, or that is not known."""
    here = _cluster_name() if job.slurm_cluster else ""
    if here in ("", job.slurm_cluster):
        return ""
    theirs = job.slurm_cluster
    return f"job {job.job_id} belongs to cluster {theirs}, this is cluster {here}; run this on a login node of {theirs}"


@cache  # `logs -f` asks every two seconds
def _cluster_name() -> str:
    from slurm import Slurm

    return Slurm().cluster_name()


def _in_queue(job: KnownJob, status: JobStatus) -> JobStatus:
    from slurm import Slurm, SlurmError

    if not job.job_id.replace("_", "", 1).isdigit():
        return status
    slurm = Slurm()
    try:
        if elsewhere := _elsewhere(job):
            return replace(status, reason=elsewhere)
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


def _cancel_local(job: KnownJob) -> None:
    process = Process.read(job.folder)
    if process is None or not process.interrupt():
        raise LauncherError(f"job {job.job_id}: no process of it on this host; cancel it on the host that runs it")
    deadline_s = time.monotonic() + _CANCEL_DEADLINE_S
    while process.alive():
        if time.monotonic() > deadline_s:
            raise LauncherError(
                f"job {job.job_id}: process {process.pid} still runs {_CANCEL_DEADLINE_S:g} s after it was asked "
                f"to end; see {job.folder}/log/supervisor.log"
            )
        time.sleep(0.1)
