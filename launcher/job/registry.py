"""The registry of jobs that this user has submitted from this machine. `holdfast status` finds them by id or name.

Each job has one small file in $XDG_STATE_HOME/holdfast/jobs (default ~/.local/state). The file names the job's folder,
which has all data of the job. If the file is lost, the job can still be named by its folder.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.plain_file import read_json
from launcher.errors import UsageError
from launcher.history.events import Event, EventReader

_log = logging.getLogger(__name__)

_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class KnownJob:
    """An entry of the registry.

    Attributes:
        job_id: the scheduler's id of it.
        name: the job's name.
        cluster: the name of its scheduler.
        folder: the job's folder.
        nodes: number of nodes that train.
        spares: number of further warm nodes.
        submitted_s: time of the submission, in seconds since the epoch.
        slurm_cluster: name of the Slurm cluster, because job ids are unique only there; "" if it is not known.
    """

    job_id: str
    name: str
    cluster: str
    folder: Path
    nodes: int
    spares: int
    submitted_s: float = field(default_factory=time.time)
    slurm_cluster: str = ""

    def to_mapping(self) -> dict[str, Any]:
        """The job as JSON data."""
        return asdict(self) | {"folder": str(self.folder)}


def remember(job: KnownJob) -> None:
    """Add a job to the registry. If the home directory is missing or cannot be written, this only logs a warning."""
    digest = hashlib.sha256(str(job.folder).encode()).hexdigest()[:8]
    try:
        path = _directory() / f"{job.job_id}-{digest}.json"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(job.to_mapping()))
        draft.replace(path)
    except OSError as error:
        reason = f"{error.filename}: not written ({error.strerror})"
        _log.warning("%s: name the job by its folder, %s", reason, job.folder)


def known_jobs() -> list[KnownJob]:
    """All jobs of the registry whose folder exists, oldest first. Removes entries whose folder does not exist."""
    jobs: list[KnownJob] = []
    try:
        paths = _directory().glob("*.json")
    except FileNotFoundError:
        return jobs
    for path in paths:
        job = _read(path)
        if job is not None and job.folder.is_dir():
            jobs.append(job)
        elif job is not None and job.folder.parent.is_dir():
            path.unlink(missing_ok=True)
    return sorted(jobs, key=lambda job: job.submitted_s)


def listed_jobs(runs: Path | None = None) -> list[KnownJob]:
    """All jobs of the registry, and further jobs in `runs` (default ./runs), as of sbatch scripts; oldest first."""
    jobs = known_jobs()
    noted = {job.folder for job in jobs}
    for folder in (runs or Path("runs")).absolute().glob("*"):
        with contextlib.suppress(OSError):  # the folder is another user's, or was removed
            if folder not in noted and is_job(folder):
                jobs.append(job_of_folder(folder))
    return sorted(jobs, key=lambda job: job.submitted_s)


def find_job(reference: str, runs: Path | None = None) -> KnownJob:
    """Find a job.

    Args:
        reference: the job's folder; or its id in `runs`; or its id or name in the registry (the newest of a name); or
            the beginning or end of an id on the local cluster. Of a Slurm job the whole id is needed, because the
            beginning of a number is another number.
        runs: the folder of job folders that is searched first; default ./runs.

    Raises:
        UsageError: there is no such job, or the part of an id is that of several jobs.
    """
    jobs = known_jobs()
    for folder in (Path(reference), (runs or Path("runs")) / reference):
        if is_job(folder):
            known = (job for job in jobs if job.folder == folder.absolute())
            return next(known, None) or job_of_folder(folder.absolute())
    found = [job for job in jobs if reference == job.job_id or Path(reference).absolute() == job.folder]
    found = found or [job for job in jobs if reference == job.name]
    found = found or _by_part(reference, listed_jobs(runs))
    if not found:
        raise UsageError(
            f"no job {reference!r}: not a job's folder, not in ./runs, not submitted from here; "
            "`holdfast status` lists the jobs that are known"
        )
    return found[-1]


def _by_part(part: str, jobs: Sequence[KnownJob]) -> list[KnownJob]:
    """The one job whose id begins with, or else ends with, a part; empty if there is none.

    Raises:
        UsageError: it is a part of several ids.
    """
    named = [job for job in jobs if not job.job_id.replace("_", "", 1).isdigit()]
    found = [job for job in named if job.job_id.startswith(part)] or [job for job in named if job.job_id.endswith(part)]
    if part and len(found) > 1:
        ids = ", ".join(job.job_id for job in found[::-1][:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise UsageError(f"job {part!r}: expected one job, {len(found)} have it in their ids: {ids}{more}")
    return found if part else []


def job_of_folder(folder: Path) -> KnownJob:
    """A job that is not in the registry, from its folder alone. A batch script may have started it.

    Raises:
        OSError: the folder cannot be read.
    """
    spec: dict[str, Any] = {}
    start: Event = {}
    for name in ("submission.json", "job.json"):  # the second one is the supervisor's, as soon as the job has started
        with contextlib.suppress(OSError, ValueError):
            spec |= read_json(folder / name)
    with contextlib.suppress(OSError, StopIteration):
        start = next(event for event in EventReader(folder / "events.jsonl").new() if event["event"] == "job_start")
    supervised = "slurm" if folder.name.isdigit() else "local"  # by `holdfast supervise`, which has begun to start
    cluster = str(start.get("cluster") or spec.get("cluster") or supervised)
    slurm_cluster, job_id = "", folder.name
    if cluster == "slurm":
        slurm_cluster, _, job_id = str(start.get("run_id") or folder.name).removeprefix("slurm-").rpartition("-")
    return KnownJob(
        job_id=job_id,
        name=str(spec.get("name", folder.name)),
        cluster=cluster,
        folder=folder,
        nodes=_count(spec.get("nodes")),
        spares=_count(spec.get("spares")),
        submitted_s=start.get("time", folder.stat().st_mtime),
        slurm_cluster=slurm_cluster,
    )


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def is_job(folder: Path) -> bool:
    """Whether a folder is that of a job."""
    return any((folder / name).is_file() for name in ("job.json", "submission.json", "events.jsonl"))


def _read(path: Path) -> KnownJob | None:
    try:
        fields = read_json(path)
        return KnownJob(**fields | {"folder": Path(fields["folder"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _directory() -> Path:
    """Raises FileNotFoundError for a user without a home directory."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, "the user has no home directory", "~/.local/state") from None
    return Path(state) / "holdfast" / "jobs"
