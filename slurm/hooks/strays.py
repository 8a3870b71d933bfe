"""Kills processes that outlived their job: processes of its user with its number in their environment."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

from slurm.hooks.directories import DirectoryError, as_user
from slurm.hooks.hook import HookJob
from slurm.hooks.log import log

if TYPE_CHECKING:
    from collections.abc import Iterable

_PROC = "/proc"
_Process = tuple[int, int]  # pid and start time, because pids are reused
_KILL_S = 1.0  # limit for killing the groups, one system call each
_EMPTY_SCANS = 5  # a single scan may miss a process that forks and ends meanwhile


def kill_strays(job: HookJob, limit_s: float) -> list[int]:
    """Kills every process that the job left behind, and processes that these start meanwhile.

    A process belongs to the job if all its user ids are the job's user and its initial environment has the job's
    SLURM_JOB_ID. So users can only cause the end of their own processes. Processes of root stay.

    Returns:
        Processes that still live after `limit_s` seconds: they hang in the kernel, and only a reboot ends them.
    """
    if job.uid == 0:
        return []
    end_s = time.monotonic() + limit_s
    killed: dict[_Process, int] = {}
    others: set[_Process] = set()  # each is read once, because reading a large environment takes a millisecond
    empty_scans = 0
    try:
        while time.monotonic() < end_s:
            youngest = _youngest()
            mine = _processes_of(job.uid)
            if not mine and not killed and _youngest() == youngest:
                break  # no process began meanwhile, so the scan has missed none
            found = []
            for process in mine:
                if process in killed or process in others:
                    continue
                if time.monotonic() > end_s:
                    break
                if (descriptor := _kill(process[0], job)) is None:
                    others.add(process)
                else:
                    killed[process] = descriptor
                    found.append(process[0])
            _kill_groups(found, job)
            ended = _ended(killed.values(), 0)
            alive = [descriptor for descriptor in killed.values() if descriptor not in ended]
            empty_scans = 0 if found else empty_scans + 1
            if not alive and empty_scans == _EMPTY_SCANS:
                break
            if alive:
                _ended(alive, 0.2)
        ended = _ended(killed.values(), 0)
        left = [pid for (pid, _), descriptor in killed.items() if descriptor not in ended]
    finally:
        for descriptor in killed.values():
            os.close(descriptor)
    if killed:
        log.info("job %d left %d processes behind; killed, %d still live", job.job_id, len(killed), len(left))
    return left


def _youngest() -> int:
    """Number of the process or thread that began last."""
    with open(f"{_PROC}/loadavg", "rb", buffering=0) as file:
        return int(file.read(1 << 10).split()[-1])


def _processes_of(uid: int) -> list[_Process]:
    """Those with this effective user id: the owner of their directories, dumpable or not; their `status` takes long."""
    found = []
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            try:
                facts = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # it has ended
            if facts.st_uid == uid:
                found.append((int(entry.name), facts.st_ctime_ns))
    return found


def _belongs(pid: int, job: HookJob) -> bool:
    try:
        with open(f"{_PROC}/{pid}/status", "rb", buffering=0) as file:
            if b"\nUid:" + b"\t%d" % job.uid * 4 + b"\n" not in file.read(1 << 14):
                return False
        with open(f"{_PROC}/{pid}/environ", "rb") as file:
            return b"\0SLURM_JOB_ID=%d\0" % job.job_id in b"\0%b\0" % file.read(1 << 21)
    except OSError:
        return False  # it has ended


def _kill(pid: int, job: HookJob) -> int | None:
    """Kills the process if it is still the same one. Returns its descriptor, which is readable once it has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    if not _belongs(pid, job):
        os.close(descriptor)
        return None

    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return descriptor


def _kill_groups(pids: Iterable[int], job: HookJob) -> None:
    """Kills the process groups of these processes at once, so that a process that keeps forking does not escape.

    It runs with the user's rights, so a group number that was reused for another user's processes is not killed.
    """
    groups = set()
    for pid in pids:
        try:
            groups.add(os.getpgid(pid))
        except OSError:
            continue
    if not groups:
        return

    def kill() -> None:
        for group in groups - {0, 1}:
            try:
                os.killpg(group, signal.SIGKILL)
            except OSError:
                continue

    try:
        as_user(job, kill, _KILL_S, f"kill what job {job.job_id} left behind", signals=True)
    except DirectoryError as error:
        log.error("%s", error)


def _ended(descriptors: Iterable[int], wait_s: float) -> set[int]:
    """Waits at most `wait_s` seconds for a process to end, and returns all that have ended."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(wait_s * 1000)}
