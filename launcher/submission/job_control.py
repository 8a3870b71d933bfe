"""Requests to a submitted job: its status, another number of nodes, save and end, end at once."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import LauncherError, UsageError
from launcher.history.events import read_events
from launcher.history.status import JobStatus, status_of
from launcher.plain_file import open_plain, read_json
from launcher.registry import KnownJob
from launcher.scale_request import ScaleRequest
from launcher.stop_request import StopRequest
from launcher.submission.queue import why_it_waits
from launcher.supervisor_process import Process

if TYPE_CHECKING:
    from launcher.jobfile import JobSpec

OUTCOMES = ("done", "halted", "user_error", "no_progress", "too_few_nodes", "cancelled", "fabric", "internal")
_CANCEL_DEADLINE_S = 30.0
_LAST_BYTES = 64 << 10
_SIZES_SHOWN = 8


def status_now(job: KnownJob) -> JobStatus:
    """The job's status from its events, corrected by the state of its process or of its Slurm job.

    The state is "lost" if the supervisor was killed, and so has written no last event. It is "unreadable" if the events
    cannot be read.
    """
    try:
        status = status_of(read_events(job.folder / "events.jsonl"))
    except OSError as error:
        return JobStatus(state="unreadable", reason=f"{job.folder}/events.jsonl: {error.strerror}")
    return corrected(job, status)


def corrected(job: KnownJob, status: JobStatus) -> JobStatus:
    """The status that a job's events give, corrected by the state of its process or of its Slurm job."""
    if status.state in OUTCOMES:
        return status
    request = StopRequest.read(job.folder)
    if request is not None:
        if request.is_served and status.state in ("pending", "requeued"):
            return replace(status, state="halted", reason="ended in the queue, as asked")
        status = replace(status, stop=str(request))
    if job.cluster == "slurm":
        return _in_queue(job, status)
    process = Process.read(job.folder)
    if process is not None and not process.alive():
        return replace(status, state="lost", reason=f"its supervisor is gone; {last_words(job)}")
    return status


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
    if state in (*OUTCOMES, "lost"):
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
    if status.state in (*OUTCOMES, "lost"):
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


def scale_job(job: KnownJob, nodes: int) -> str:
    """Have a job train on another number of nodes, as soon as it has that many.

    Args:
        job: the job.
        nodes: one of the sizes in its job file.

    Returns:
        The result in words.

    Raises:
        UsageError: the job belongs to another user, is not elastic, or does not allow this size.
        LauncherError: the job has ended.
        OSError: its folder cannot be written.
    """
    _check_owner(job)
    status = status_now(job)
    if status.state in (*OUTCOMES, "lost"):
        raise LauncherError(f"job {job.job_id} has ended already ({status.state}); submit it again with -N {nodes}")
    spec = _spec(job.folder)
    if spec.elastic is None:
        raise UsageError(
            f"job {job.job_id}: its job file has no elastic section, so it keeps its {spec.nodes} nodes; "
            "expected `elastic` with min_nodes and max_nodes, or sizes"
        )
    if nodes not in spec.sizes:
        raise UsageError(f"job {job.job_id}: got {nodes} nodes, expected {_nearest(spec.sizes, nodes)}")
    ScaleRequest(host=socket.gethostname(), nodes=nodes).write(job.folder)
    when = "when it starts" if status.state in ("pending", "requeued") else "as soon as it can"
    return f"job {job.job_id} trains on {nodes} nodes {when}; `holdfast status {job.job_id}` shows what it waits for"


def _spec(folder: Path) -> JobSpec:
    """The job from its supervisor's job.json; before there is one, from the submitted request."""
    from launcher.jobfile import JobSpec, read_job

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
    for name in (f"{job.job_id}_0_log.err", "log/supervisor.log"):
        path = job.folder / name
        try:
            with open_plain(path) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
                lines = file.read().decode(errors="replace").split("\n")
        except OSError:
            continue
        spoken = [line.strip() for line in lines if line.strip()]
        if spoken:
            return f"{path} ends with: {spoken[-1]}"
    return f"{job.folder} holds no log"


def _check_owner(job: KnownJob) -> None:
    """Raises UsageError for a job folder of another user, because it may name one of this user's jobs or processes."""
    owner = job.folder.stat().st_uid
    if owner != os.geteuid():
        raise UsageError(f"{job.folder}: belongs to uid {owner}, and we are {os.geteuid()}; its owner may end the job")


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
        waits = why_it_waits(queued, slurm.nodes) if queued is not None and queued.state == "PENDING" else None
    except SlurmError as error:
        return replace(status, reason=f"Slurm does not answer: {error}")
    if queued is not None and queued.state == "CANCELLED":
        return replace(status, state="cancelled", reason=None)
    if queued is None or queued.has_ended:
        answer = "no longer knows it" if queued is None else f"says {queued.state}"
        if queued is not None and queued.cannot_write:
            answer = f"could not open its log in {job.folder}; submit it again when that folder can be written"
        return replace(status, state="lost", reason=f"it left no outcome and Slurm {answer}; {last_words(job)}")
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
