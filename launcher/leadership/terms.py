"""The terms of a job's supervisors, as files in the job's folder, and the lease that the holder of the newest renews.

`terms/<number>.json` is made by link(2), which succeeds for only one process, on NFS too. So each number has one holder
for ever. The supervisor with the highest number decides; one that finds a higher number ends. The lease is a count that
grows while the holder of the newest term lives and its runners answer. Each reader measures its age by its own clock.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

RENEW_S = 0.5
LEASE_S = 1.5  # a lease that has not changed for this time has run out

_LONGEST_LOOK_S = 0.5  # a longer time between two reads counts as this: we or the file system may have stood still

_NAME = re.compile(r"(\d{6})\.json")


@dataclass(frozen=True, kw_only=True)
class Term:
    """A supervisor's term.

    Attributes:
        number: from 1. The supervisor with the highest number decides.
        run_id: the run that it supervises.
        node: the node on which it runs; None on the local cluster.
        host, port: the address at which runners reach it.
        pid: the PID of its process.
    """

    number: int
    run_id: str
    node: str | None
    host: str
    port: int
    pid: int


def newest_number(job_dir: Path) -> int:
    """The highest term taken so far; 0 for none."""
    try:
        names = os.listdir(job_dir / "terms")
    except FileNotFoundError:
        return 0
    return max((int(match[1]) for name in names if (match := _NAME.fullmatch(name))), default=0)


def newest(job_dir: Path) -> Term | None:
    """The highest term taken so far; None if there is none.

    Raises:
        OSError, ValueError: the term's file cannot be read.
    """
    number = newest_number(job_dir)
    return Term(**json.loads(_path(job_dir, number).read_text())) if number else None


def claim(job_dir: Path, term: Term) -> bool:
    """Take a term. Returns False if another supervisor has that number."""
    directory = job_dir / "terms"
    directory.mkdir(mode=0o700, exist_ok=True)
    draft = directory / f".{term.number}-{term.host}-{os.getpid()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, json.dumps(asdict(term)).encode())
        os.fsync(fd)
        os.link(draft, _path(job_dir, term.number))
    except FileExistsError:
        return False
    finally:
        os.close(fd)
        draft.unlink()
    return True


def renew(job_dir: Path, number: int, count: int) -> None:
    """Renew the lease of a term. Readers never see half of it, because one short pwrite writes it."""
    fd = os.open(job_dir / "lease", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, f"{number:6} {count:12}\n".encode(), 0)
    finally:
        os.close(fd)


class LeaseWatch:
    """Measures how long the lease has not changed. Call `quiet_s` often: a gap between calls counts only in part.

    Args:
        job_dir: the job's folder.
        clock: monotonic clock, in seconds.
    """

    def __init__(self, job_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = job_dir / "lease"
        self._clock = clock
        self._seen = self._read()
        self._looked_s = clock()
        self._quiet_s = 0.0

    def quiet_s(self) -> float:
        """Time without a change since the last one that was seen, or since the watch began, in seconds.

        Time in which the lease could not be read does not count: it says nothing of the leader.
        """
        seen, now_s = self._read(), self._clock()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if seen is None:
            return self._quiet_s
        self._quiet_s = self._quiet_s + min(passed_s, _LONGEST_LOOK_S) if seen == self._seen else 0.0
        self._seen = seen
        return self._quiet_s

    def _read(self) -> bytes | None:
        """The lease; empty if there is none, None if its file system does not answer this host."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError:
            return None


def _path(job_dir: Path, number: int) -> Path:
    return job_dir / "terms" / f"{number:06}.json"
