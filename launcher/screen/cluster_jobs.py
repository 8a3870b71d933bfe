"""The jobs of all users of a Slurm cluster, for its administrators.

Slurm's queue names the files and directories of a job, which its user chose. A folder counts only if the job's own user
owns it, so nobody can show a job under another user's name. What is in it is read as that of any other user.
"""

from __future__ import annotations

import contextlib
import pwd
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.clusters.slurm.status import by_queue
from launcher.core.outcomes import FINAL
from launcher.history.status import JobStatus
from launcher.history.stored import StatusReader
from launcher.history.wording import plural
from launcher.job.registry import KnownJob, is_job, job_of_folder
from launcher.submission.job_control import by_events
from slurm import Slurm, SlurmError
from slurm.records import QueuedJob

_ASK_EVERY_S = 5.0


@dataclass
class _Seen:
    """A job of Holdfast in Slurm's queue, as far as it was read."""

    job: KnownJob
    queued: QueuedJob
    reader: StatusReader


class ClusterJobs:
    """The jobs of Holdfast in Slurm's queue with their status. Slurm is asked about all of them at once.

    Attributes:
        users: each job's user, by its id.
        remark: how many folders could not be read, and whether Slurm answers; "" for nothing.

    Raises:
        SlurmError: Slurm does not answer.
    """

    def __init__(self, slurm: Slurm | None = None) -> None:
        self._slurm = slurm or Slurm()
        self._seen: dict[str, _Seen] = {}
        self._asked_s = 0.0
        self.users: Mapping[str, str] | None = {}
        self.remark = ""
        self._list()

    def now(self) -> list[tuple[KnownJob, JobStatus]]:
        """The jobs of the last answer with what their events say now."""
        if time.monotonic() - self._asked_s >= _ASK_EVERY_S:
            try:
                self._list()
            except SlurmError as error:
                self._asked_s = time.monotonic()
                self.remark = f"Slurm does not answer: {error}"
        return [(seen.job, _status(seen)) for seen in self._seen.values()]

    def _list(self) -> None:
        queued = self._slurm.all_jobs()
        self._asked_s = time.monotonic()
        hidden = 0
        found: dict[str, _Seen] = {}
        for row in queued:
            try:
                seen = self._seen.get(row.id) or _seen(row)
            except OSError:  # not ours to read
                hidden += 1
                continue
            if seen is not None:
                found[row.id] = replace(seen, queued=row)
        self._seen = found
        self.users = {job_id: _name(seen.queued.user) for job_id, seen in found.items()}
        self.remark = f"not shown: {plural(hidden, 'job')} with folders that cannot be read" if hidden else ""


def _seen(row: QueuedJob) -> _Seen | None:
    """A job of Slurm's queue that is one of Holdfast; None if it is not.

    Raises:
        OSError: its folders cannot be read.
    """
    for folder in _folders(row):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if folder.stat().st_uid == row.user and _is_job(folder):
                job = replace(job_of_folder(folder), cluster="slurm")
                if job.job_id == row.id:  # others may write into a job's folder too
                    return _Seen(job=job, queued=row, reader=StatusReader(folder))
    return None


def _is_job(folder: Path) -> bool:
    """Whether a folder is that of a job. Raises OSError if it cannot be listed."""
    next(folder.iterdir(), None)
    return is_job(folder)


def _folders(row: QueuedJob) -> Iterator[Path]:
    """Where a job's folder may be: that of its output, or the default of `holdfast supervise`."""
    output = row.stdout.replace("%j", row.id).replace("%A", row.id.partition("_")[0])
    if output.startswith("/") and Path(output).parent != Path("/dev"):
        yield Path(output).parent
    if row.directory.startswith("/"):
        yield Path(row.directory) / "runs" / row.id


def _status(seen: _Seen) -> JobStatus:
    status = by_events(seen.job, seen.reader)
    if status.state in (*FINAL, "unreadable"):
        return status
    row = seen.queued
    waits = f"waits in the queue: {row.reason or 'no reason given'}" if row.state == "PENDING" else None
    return by_queue(status, row, waits, lambda: f"says {row.state}")


def _name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
