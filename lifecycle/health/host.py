"""Cheap checks of the host: whether this node can hold checkpoints in memory and run workers."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning

MIN_FREE_BYTES = 256 << 20
MIN_OPEN_FILES = 1024
_LOGIND = ("org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager")
_FIX = "as root: holdfast node provision --only logind, which sets RemoveIPC=no"


@check("memory_file_system", Level.PROLOG, limit_s=1.0)
def memory_file_system(node: CheckedNode) -> Finding:
    """/dev/shm can be written and has room for checkpoints."""
    return judge_memory(node.path("/dev/shm"), in_use=warning)  # by jobs: not a fault of the node


@check("open_files", Level.PROLOG, limit_s=1.0)
def open_files(node: CheckedNode) -> Finding:
    """A process may hold enough file descriptors for its workers, peers and checkpoints."""
    return judge_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@check("remove_ipc", Level.QUICK, limit_s=10.0)
def remove_ipc(node: CheckedNode) -> Finding:
    """systemd leaves the files of users in /dev/shm when they log out."""
    if not node.path("/run/systemd/system").is_dir():
        raise NotHere("systemd does not run here")
    answer = node.tool("busctl", "get-property", *_LOGIND, "RemoveIPC", timeout_s=5.0).stdout.strip()
    expected = "RemoveIPC=no"
    if answer == "b false":
        return ok("RemoveIPC=no", expected)
    if answer == "b true":
        # logind.conf(5): at the end of a user's last session. A Slurm job is not a session of logind.
        return warning("RemoveIPC=yes: a user's logout removes what jobs hold in memory", expected, _FIX)
    raise CannotObserve(f"busctl: got {answer!r:.40}, expected b true or b false")


def judge_memory(
    directory: Path,
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
    in_use: Callable[[str, str, str], Finding] = critical,
) -> Finding:
    """Whether the file system that holds checkpoints in memory can be written and has room.

    Args:
        directory: an existing directory on it, such as /dev/shm.
        statvfs: replaced in tests.
        in_use: the result if files leave no space: by default critical, as for a job that is about to start.
    """
    expected = f"writable, {MIN_FREE_BYTES >> 20} MiB free"
    try:
        facts = statvfs(directory)
    except OSError as error:
        return critical(f"{directory}: {error.strerror}", expected, "mount a tmpfs there")
    free = facts.f_bavail * facts.f_frsize
    read_only = bool(facts.f_flag & os.ST_RDONLY) or not os.access(directory, os.W_OK)
    measured = f"{directory}: {'read-only' if read_only else 'writable'}, {free >> 20} MiB free"
    if read_only or facts.f_blocks * facts.f_frsize < MIN_FREE_BYTES:
        return critical(measured, expected, "mount a larger tmpfs there, read-write")
    if free < MIN_FREE_BYTES:
        return in_use(measured, expected, "remove what dead jobs left there, or enlarge the tmpfs")
    return ok(measured, expected)


def judge_open_files(soft: int) -> Finding:
    """Whether a soft limit of file descriptors is enough."""
    expected = f"at least {MIN_OPEN_FILES}"
    if soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES:
        return ok(f"nofile {soft}", expected)
    return critical(f"nofile {soft}", expected, "raise nofile for slurmd (LimitNOFILE in its unit, limits.conf)")
