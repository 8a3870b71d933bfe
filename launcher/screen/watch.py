"""`holdfast status JOB --watch` and `holdfast top`: a screen on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.base.plain_file import read_json
from holdfast.blocks import Escaped, printable
from launcher.history.events import EventReader
from launcher.history.status import JobStatus
from launcher.history.view import ending, event_line, standing
from launcher.job.registry import KnownJob, listed_jobs
from launcher.screen.cluster_jobs import ClusterJobs
from launcher.screen.job import job_lines
from launcher.screen.jobs import has_ended, job_words, jobs_lines
from launcher.screen.show import show
from launcher.submission.job_control import JobFollower

_POLL_S = 1.0
_STANDING_EVERY_S = 10.0  # between two lines with the state, where there is no screen
_LIST_EVERY_S = 5.0  # between two looks for new jobs
_NOT_SHOWN = ("commit", "node_ready", "own_checkpoint")


def watch_job(job: KnownJob, console: Console) -> None:
    """Show one job until it has ended or the user presses q."""
    follower = JobFollower(job)
    if not console.is_terminal:
        return _print_job(job, follower, console)
    facts: dict[str, Any] = {}

    def draw(width: int, height: int, is_unicode: bool) -> list[Text] | None:
        nonlocal facts
        facts = facts or _job_file(job)
        status = follower.status()
        shown.append(status)
        del shown[:-1]
        if has_ended(status) and drawn:
            return None
        drawn.append(True)
        return job_lines(
            job, status, facts, now_s=time.time(), width=width, height=height, is_unicode=is_unicode
        )  # fmt: skip

    shown: list[JobStatus] = []
    drawn: list[bool] = []
    show(console, draw)
    if shown:
        now = f"job {job.job_id}: {ending(shown[0]) if has_ended(shown[0]) else standing(shown[0]).plain}"
        console.print(printable(now), soft_wrap=True)
    return None


def watch_jobs(console: Console, *, all_users: bool = False) -> None:
    """Show all jobs until the user presses q.

    Args:
        console: where.
        all_users: the jobs of all users in Slurm's queue, as far as this user may read them; otherwise those that this
            user has submitted from here.

    Raises:
        SlurmError: Slurm does not answer to the first question for the jobs of all users.
    """
    jobs = ClusterJobs() if all_users else _OwnJobs()
    if not console.is_terminal:
        return _print_jobs(jobs, console)

    def draw(width: int, height: int, is_unicode: bool) -> list[Text]:
        return jobs_lines(
            jobs.now(), clock=time.strftime("%H:%M:%S"), width=width, height=height, is_unicode=is_unicode,
            users=jobs.users, remark=jobs.remark,
        )  # fmt: skip

    show(console, draw)
    return None


class _OwnJobs:
    """All known jobs with their status. A job that has ended is read once."""

    users: Mapping[str, str] | None = None
    remark = ""

    def __init__(self) -> None:
        self._followers: dict[str, JobFollower] = {}
        self._ended: dict[str, JobStatus] = {}
        self._jobs: list[KnownJob] = []
        self._listed_s = 0.0

    def now(self) -> list[tuple[KnownJob, JobStatus]]:
        if not self._jobs or time.monotonic() - self._listed_s >= _LIST_EVERY_S:
            self._jobs, self._listed_s = listed_jobs(), time.monotonic()
        return [(job, self._status(job)) for job in self._jobs]

    def _status(self, job: KnownJob) -> JobStatus:
        key = str(job.folder)
        if key in self._ended:
            return self._ended[key]
        status = self._followers.setdefault(key, JobFollower(job)).status()
        if has_ended(status):
            self._ended[key] = status
            del self._followers[key]
        return status


def _print_job(job: KnownJob, follower: JobFollower, console: Console) -> None:
    """Prints the events from now on, and the state now and then."""
    events = EventReader(job.folder / "events.jsonl")
    next_s = 0.0
    for _ in events.new(only=("takeover",)):
        pass  # what was before
    while not has_ended(status := follower.status()):
        for event in events.new():
            if event["event"] not in _NOT_SHOWN:
                console.print(Escaped(event_line(event)), soft_wrap=True)
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _STANDING_EVERY_S
            _say(console, standing(status).plain)
        time.sleep(_POLL_S)
    for event in events.new():
        if event["event"] not in _NOT_SHOWN:
            console.print(Escaped(event_line(event)), soft_wrap=True)
    _say(console, ending(status))


def _print_jobs(jobs: _OwnJobs | ClusterJobs, console: Console) -> None:
    """Prints a line for each job whose state has changed, and now and then for each that runs."""
    told: dict[str, str] = {}
    remark = ""
    next_s = 0.0
    while True:
        is_due = time.monotonic() >= next_s
        next_s = time.monotonic() + _STANDING_EVERY_S if is_due else next_s
        for job, status in jobs.now():
            has_changed = told.get(str(job.folder)) != status.state
            if has_changed or (is_due and not has_ended(status)):
                _say(console, job_words(job, status, (jobs.users or {}).get(job.job_id, "")))
            told[str(job.folder)] = status.state
        if jobs.remark and jobs.remark != remark:
            _say(console, jobs.remark)
        remark = jobs.remark
        time.sleep(_POLL_S)


def _say(console: Console, line: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')}  {printable(line)}", soft_wrap=True)
    console.file.flush()


def _job_file(job: KnownJob) -> dict[str, Any]:
    try:
        return read_json(job.folder / "job.json")
    except (OSError, ValueError):
        return {}
