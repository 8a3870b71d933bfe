"""Time limits as sbatch(1) takes them with --time."""

from __future__ import annotations

import re

from slurm.errors import SlurmError

NOTATIONS = "minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM, D-HH:MM:SS or UNLIMITED"

_UNLIMITED = re.compile(r"unlimited|infinite|-1|0+", re.IGNORECASE)
_PLAIN = re.compile(
    r"(?:(?:(\d{1,8}):)?(\d{1,8}):(\d{1,8})|(\d{1,8}))", re.ASCII
)  # [[hours:]minutes:seconds] or minutes
_WITH_DAYS = re.compile(r"(\d{1,6})-(\d{1,8})(?::(\d{1,8}))?(?::(\d{1,8}))?", re.ASCII)


def time_limit_min(limit: str) -> int | None:
    """A time limit in minutes, rounded up as Slurm does; None for no limit.

    Raises:
        SlurmError: sbatch would not take it.
    """
    if _UNLIMITED.fullmatch(limit):
        return None
    if found := _WITH_DAYS.fullmatch(limit):
        days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    elif found := _PLAIN.fullmatch(limit):
        hours, clock_minutes, seconds, whole = (int(part or 0) for part in found.groups())
        days, minutes = 0, clock_minutes + whole
    else:
        raise SlurmError(f"got {limit!r:.80}, expected {NOTATIONS}")
    return (days * 24 + hours) * 60 + minutes + -(-seconds // 60)
