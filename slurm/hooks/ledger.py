"""Which jobs have memory on this node, and until when: `<run>/holdfast/jobs/<job id>.json`, root's own.

Times are on the clock that runs since boot: the files go with a reboot, as the memory does, and no change of the date
touches them.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm.hooks.hook import HookJob

log = logging.getLogger("holdfast.hooks")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A job on this node.

    Attributes:
        job_id, uid, gid, cluster: the job.
        started_s: when its prolog ran, seconds since boot.
        keep_until_s: when its memory may go, seconds since boot; None while it runs.
    """

    job_id: int
    uid: int
    gid: int
    cluster: str
    started_s: float
    keep_until_s: float | None = None

    @property
    def job(self) -> HookJob:
        return HookJob(job_id=self.job_id, uid=self.uid, gid=self.gid, cluster=self.cluster)

    @property
    def is_due(self) -> bool:
        """Whether its memory may go."""
        return self.keep_until_s is not None and self.keep_until_s <= now_s()


class Ledger:
    """The entries of all jobs of this node."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def begin(self, job: HookJob) -> None:
        """The job runs here, for the first time or again."""
        self._write(Entry(**vars(job), started_s=now_s()))

    def end(self, entry: Entry, keep_s: float) -> None:
        """The job has left the node; its memory stays for a while."""
        self._write(Entry(**asdict(entry) | {"keep_until_s": now_s() + keep_s}))

    def forget(self, entry: Entry) -> None:
        """Nothing of the job is left."""
        self._path(entry.job_id).unlink(missing_ok=True)

    def entry(self, job: HookJob) -> Entry | None:
        """The job's entry; None where its prolog did not run, or for another user."""
        found = self._read(self._path(job.job_id))
        return found if found is not None and found.uid == job.uid else None

    def __iter__(self) -> Iterator[Entry]:
        for path in sorted(self._directory.glob("*.json")):
            if (found := self._read(path)) is not None:
                yield found

    def _path(self, job_id: int) -> Path:
        return self._directory / f"{job_id}.json"

    def _read(self, path: Path) -> Entry | None:
        try:
            return Entry(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            log.warning("%s cannot be read (%s); the job's memory stays until a reboot", path, error)
            return None

    def _write(self, entry: Entry) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = self._path(entry.job_id).with_suffix(".new")
        temporary.write_text(json.dumps(asdict(entry)))
        os.replace(temporary, self._path(entry.job_id))


def now_s() -> float:
    """Seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
