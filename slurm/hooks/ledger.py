"""Which jobs have memory on this node, and until when: `<run>/holdfast/jobs/<job id>`, root's own.

A file is one line of `name=value`: uid, gid, cluster, started_s, and keep_until_s once the job has left. Times are on
the clock that runs since boot: the files go with a reboot, as the memory does, and no change of the date touches them.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from slurm.errors import SlurmError
from slurm.hooks.hook import HookJob
from slurm.hooks.log import log
from slurm.hooks.places import SettingsError, read_of_root, write_of_root

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_BYTES = 1 << 12
_LOCK_S = 5.0  # the holder writes one small file; shorter than the limit of every hook
_LOCK_POLL_S = 0.01


class LedgerBusy(SlurmError):
    """Another process has held the ledger for longer than any hook needs. Nothing was written for the job."""


class Entry:
    """A job on this node.

    Attributes:
        job: the job.
        started_s: when its prolog ran, seconds since boot.
        keep_until_s: when its memory may go, seconds since boot; None while it runs.
    """

    def __init__(self, job: HookJob, *, started_s: float, keep_until_s: float | None = None) -> None:
        self.job = job
        self.started_s = started_s
        self.keep_until_s = keep_until_s

    @property
    def is_due(self) -> bool:
        """Whether its memory may go."""
        return self.keep_until_s is not None and self.keep_until_s <= now_s()


class Ledger:
    """The entries of all jobs of this node."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def begin(self, job: HookJob, limit_s: float = _LOCK_S) -> None:
        """Records that the job runs here. Waits for a process that frees the job's memory at this moment.

        Raises:
            LedgerBusy: another process does not release the ledger, or this job's entry, within `limit_s` seconds.
        """
        free = _locked(self._path(job.job_id), limit_s)
        try:
            lock = self._lock()
            try:
                self._write(Entry(job, started_s=now_s()))
            finally:
                if lock is not None:
                    os.close(lock)
        finally:
            if free is not None:
                os.close(free)

    def end(self, entry: Entry, keep_s: float) -> None:
        """Records that the job has left, and how long its memory stays. Does nothing if the job has come back since.

        Raises:
            LedgerBusy: another process does not release the ledger.
        """
        lock = self._lock()
        if lock is None:
            return
        try:
            found = self.entry(entry.job)
            if found is not None and found.started_s == entry.started_s:
                self._write(Entry(entry.job, started_s=entry.started_s, keep_until_s=now_s() + keep_s))
        finally:
            os.close(lock)

    def due(self, entry: Entry) -> int | None:
        """Locks an entry whose memory may be freed, until `release`; None if it may not, or another process has it."""
        try:
            held = _locked(self._path(entry.job.job_id), 0)
        except LedgerBusy:
            return None
        if held is None:
            return None
        found = self._read(entry.job.job_id)  # the job may have come back since the entry was read
        if found is not None and found.is_due and os.fstat(held).st_nlink:
            return held
        os.close(held)
        return None

    def release(self, held: int) -> None:
        """Unlocks an entry, also if an abandoned child process inherited the lock."""
        fcntl.flock(held, fcntl.LOCK_UN)
        os.close(held)

    def forget(self, entry: Entry) -> None:
        """Removes the entry of a job of which nothing is left."""
        try:
            os.unlink(self._path(entry.job.job_id))
        except FileNotFoundError:
            pass

    def entry(self, job: HookJob) -> Entry | None:
        """The job's entry; None if its prolog did not run, or ran for another user."""
        found = self._read(job.job_id)
        return found if found is not None and found.job.uid == job.uid else None

    def __iter__(self) -> Iterator[Entry]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return
        for job_id in sorted(int(name) for name in names if name.isdigit()):
            if (found := self._read(job_id)) is not None:
                yield found

    def _path(self, job_id: int) -> str:
        return f"{self._directory}/{job_id}"

    def _read(self, job_id: int) -> Entry | None:
        path = self._path(job_id)
        try:
            facts = dict(word.split("=") for word in read_of_root(path, _MAX_BYTES).split())
            keep_until_s = float(facts["keep_until_s"]) if "keep_until_s" in facts else None
            job = HookJob(job_id=job_id, uid=int(facts["uid"]), gid=int(facts["gid"]), cluster=facts["cluster"])
            return Entry(job, started_s=float(facts["started_s"]), keep_until_s=keep_until_s)
        except FileNotFoundError:
            return None
        except (OSError, SettingsError, KeyError, ValueError) as error:
            log.warning("%s cannot be read (%r); the job's memory stays until a reboot", path, error)
            return None

    def _lock(self) -> int | None:
        """Held while an entry changes: a health check may look at a job whose prolog runs. None without any entry."""
        return _locked(self._directory, _LOCK_S, os.O_DIRECTORY)

    def _write(self, entry: Entry) -> None:
        job = entry.job
        kept = "" if entry.keep_until_s is None else f" keep_until_s={entry.keep_until_s}"
        text = f"uid={job.uid} gid={job.gid} cluster={job.cluster} started_s={entry.started_s}{kept}\n"
        write_of_root(self._path(job.job_id), text, 0o600, 0o700)


def _locked(path: str, limit_s: float, flags: int = 0) -> int | None:
    """Locks an existing file; None if there is none.

    Raises:
        LedgerBusy: another process does not release it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags)
    except FileNotFoundError:
        return None
    end_s = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= end_s:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise LedgerBusy(
                    f"{path}: held by {holder} for over {limit_s:g} s; end that process, or see what it waits for"
                ) from None
        time.sleep(_LOCK_POLL_S)


def _holder(descriptor: int) -> str:
    """A description of the process that has a file locked, from /proc/locks (proc(5))."""
    facts = os.fstat(descriptor)
    file = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    with open("/proc/locks") as locks:
        held = [line.split() for line in locks]
    for words in held:  # "1: FLOCK ADVISORY WRITE <process> <file> 0 EOF"; who waits has "->" after the number
        if words[1] == "FLOCK" and words[5] == file:
            try:
                with open(f"/proc/{words[4]}/cmdline", "rb") as command:
                    argv = command.read(1 << 10).decode(errors="replace").replace("\0", " ")
                command_line = " ".join(argv.split())[-200:]  # the end of the command has the hook's name
            except OSError:
                command_line = "which has ended; one that it started still has it"
            return f"process {words[4]} ({command_line})"
    return "a process that the kernel does not name"


def now_s() -> float:
    """Seconds since boot."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
