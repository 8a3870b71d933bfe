"""Finds and ends processes on this node, from /proc."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FIRST_POLL_S, _POLL_S = 0.001, 0.01
_EXITING = 0x4  # PF_EXITING in a process' flags (include/linux/sched.h)

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel SIGKILL this process when its parent thread ends. Ends it now if the parent has ended already.

    Args:
        parent_pid: the parent's PID, in the parent's own PID namespace.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Make orphaned descendants of this process its children from now on, so that descendants() finds them all."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """PIDs of a process' children, including zombies. While children end, the list may be incomplete (proc(5))."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """PIDs of a process' live descendants, without zombies. Reads only these processes, not all of /proc."""
    found = []
    left = children(pid)
    while left:
        child = left.pop()
        left += children(child)
        if state_of(child) not in ("", "Z", "X"):
            found.append(child)
    return found


def session_pids(session: int) -> list[int]:
    """PIDs of a session's live processes, without zombies."""
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session and state_of(pid) not in ("", "Z", "X"):
                found.append(pid)
    return found


def state_of(pid: int) -> str:
    """The letter of a process' state (proc(5)): R, S, D, T (stopped), Z, ...; "" if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_blocked(pid: int) -> bool:
    """Whether the kernel blocks a process (uninterruptible sleep) that has not begun to end, so SIGKILL has no effect.

    A process that ends may be in that state, too, while the driver frees its memory of GPUs.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] == "D" and not int(fields[6]) & _EXITING


def status_of(pid: int) -> dict[str, str]:
    """The fields of /proc/PID/status (proc(5)); empty if the process has ended."""
    try:
        fields = dict(line.partition(":")[::2] for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return {}
    return {name: " ".join(value.split()) for name, value in fields.items()}


def handles(pid: int, number: int) -> bool:
    """Whether a process has installed a handler for a signal."""
    return bool(int(status_of(pid).get("SigCgt", "0"), 16) >> (number - 1) & 1)


def cpu_ticks(pid: int) -> int | None:
    """CPU time that a process has used, in clock ticks (100 a second); None if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] in "ZX":
        return None
    return int(fields[11]) + int(fields[12])  # utime, stime


def pids_with_environment(wanted: Mapping[str, str]) -> list[int]:
    """PIDs of live processes that have these variables in their environment at exec (inherited through fork)."""
    needles = [f"{name}={value}".encode() for name, value in wanted.items()]
    found = []
    for pid in _pids():
        with contextlib.suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if all(needle in environment for needle in needles):
                found.append(pid)
    return found


def environment_of(pid: int) -> dict[str, str]:
    """A process' environment at exec; empty if the process has ended or is another user's."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return dict(item.decode(errors="replace").partition("=")[::2] for item in raw.split(b"\0") if b"=" in item)


def open_memfd(pid: int, name: str) -> int | None:
    """Opens the memory of that name (memfd_create(2)) that a process has open; None if it has none or has ended."""
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{descriptor}"
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{name}"):
                    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


async def end_all(
    find: Callable[[], list[int]], timeout_s: float, on_slow: Callable[[list[int]], float] | None = None
) -> list[int]:
    """SIGKILL the processes that `find` returns, again and again until it returns none.

    Args:
        on_slow: called once with what is left after `timeout_s`, unless the kernel blocks all of it. Such processes
            free much memory, or wait for a processor, and will end. It returns for how many seconds to wait for them.

    Returns:
        PIDs that still live. Normally none.
    """
    until_s, pause_s = time.monotonic() + timeout_s, _FIRST_POLL_S
    while pids := find() or find():
        if (now_s := time.monotonic()) > until_s:
            if on_slow is None or all(map(is_blocked, pids)):
                return pids
            until_s, on_slow = now_s + on_slow(pids), None
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_S)
    return []


def _pids() -> Iterator[int]:
    me = os.getpid()
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != me)
