"""Checks of the host itself that need no GPU: can this node hold checkpoints in memory and run workers?"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

from lifecycle.health.finding import Finding, Status

MIN_FREE_BYTES = 256 << 20
MIN_OPEN_FILES = 1024


def memory_file_system(directory: Path, statvfs: Callable[[Path], os.statvfs_result] = os.statvfs) -> Finding:
    """Whether the file system that holds checkpoints in memory can be written and has room.

    Args:
        directory: an existing directory on it, such as /dev/shm.
        statvfs: replaced in tests.
    """
    expected = f"writable, {MIN_FREE_BYTES >> 20} MiB free"
    try:
        facts = statvfs(directory)
    except OSError as error:
        return Finding(
            check="memory_file_system",
            status=Status.CRITICAL,
            measured=f"{directory}: {error.strerror}",
            expected=expected,
            advice="mount a tmpfs there",
        )
    free = facts.f_bavail * facts.f_frsize
    read_only = bool(facts.f_flag & os.ST_RDONLY) or not os.access(directory, os.W_OK)
    fit = free >= MIN_FREE_BYTES and not read_only
    return Finding(
        check="memory_file_system",
        status=Status.OK if fit else Status.CRITICAL,
        measured=f"{directory}: {'read-only' if read_only else 'writable'}, {free >> 20} MiB free",
        expected=expected,
        advice="" if fit else "remove what dead jobs left there, or enlarge the tmpfs",
    )


def open_files(limit: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0]) -> Finding:
    """Whether a process may hold enough file descriptors for its workers, peers and checkpoints."""
    soft = limit()
    fit = soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES
    return Finding(
        check="open_files",
        status=Status.OK if fit else Status.CRITICAL,
        measured=f"nofile {soft}",
        expected=f"at least {MIN_OPEN_FILES}",
        advice="" if fit else "raise nofile for slurmd (LimitNOFILE in its unit, limits.conf)",
    )


def preflight(memory: Path) -> list[Finding]:
    """What a runner asks of its node before the node joins a job; milliseconds.

    Args:
        memory: the directory, on a memory file system, below which checkpoints will be held.
    """
    return [memory_file_system(memory), open_files()]
