"""The result of one health check."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.IntEnum):
    """The exit codes of Nagios plugins. UNKNOWN is "could not observe": neither healthy nor failed, never acted on."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check measured, what it expected, and what to do about a difference."""

    check: str
    status: Status
    measured: str
    expected: str
    advice: str = ""

    def __str__(self) -> str:
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.check}: {self.status.name}: {self.measured}, expected {self.expected}{advice}"
