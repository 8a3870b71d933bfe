"""The identity of the process with which a run ends, for other programs on the same machine."""

from __future__ import annotations

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STATE, _START_TIME = 0, 19  # fields of /proc/<pid>/stat after the command name, see proc(5)
_DEAD = ("Z", "X")


def identity_of(pid: int) -> str:
    """A name for a process that no other process ever has; "" if the process does not exist."""
    try:
        return f"{_machine()} {pid} {_stat(pid)[_START_TIME]}"
    except OSError:
        return ""


def has_ended(identity: str) -> bool:
    """Whether a process of this machine and pid namespace has ended. False if that cannot be known."""
    try:
        machine, pid, start_time = identity.rsplit(" ", 2)
        if machine != _machine():
            return False
        stat = _stat(int(pid))
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return stat[_START_TIME] != start_time or stat[_STATE] in _DEAD


def _machine() -> str:
    return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
