"""Whether another run has certainly ended: by its process on this machine, or by a command that the launcher gives."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from holdfast.base.programs import ProgramError, run

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STATE, _START_TIME = 0, 19  # fields of /proc/<pid>/stat after the command name, see proc(5)
_DEAD = ("Z", "X")

log = logging.getLogger(__name__)


def has_ended(command: Sequence[str], run_id: str, timeout_s: float) -> bool:
    """Runs the command with a run's id. True if it exits with 0; False if anything goes wrong.

    Args:
        command: its argv; empty if there is no such command.
        run_id: the run's id from its claim, which is not trusted.
    """
    if not command:
        return False
    try:
        done = run([*command, run_id], timeout_s=timeout_s, check=False)
    except (ProgramError, ValueError) as error:  # ValueError: the id has a character that no argument may have
        log.warning("cannot tell whether run %s has ended: %s", run_id, error)
        return False
    log.info("run %s: %s", run_id, (done.stdout or done.stderr).strip()[-300:])
    return done.returncode == 0


def identity_of(pid: int) -> str:
    """A name for a process that no other process ever has; "" if the process does not exist."""
    try:
        return f"{_machine()} {pid} {_stat(pid)[_START_TIME]}"
    except OSError:
        return ""


def process_has_ended(identity: str) -> bool:
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
