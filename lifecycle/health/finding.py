"""The result of one health check."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class Status(enum.IntEnum):
    """The exit codes of Nagios plugins, and SKIPPED for parts that this node does not have.

    UNKNOWN means that the check could not look. UNKNOWN and SKIPPED are neither healthy nor failed, and no action is
    ever taken for them.
    """

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3
    SKIPPED = 4

    @property
    def word(self) -> str:
        """The word in tables, in JSON and in the verdict file."""
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check: what it measured, what it expected, and what to do about a difference.

    Attributes:
        check: the check's name.
        seconds: run time in seconds.
    """

    status: Status
    measured: str
    expected: str = ""
    advice: str = ""
    check: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        expected = f", expected {self.expected}" if self.expected else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.check}: {self.status.name}: {self.measured}{expected}{advice}"

    def to_mapping(self) -> dict[str, Any]:
        return {
            "name": self.check,
            "status": self.status.word,
            "measured": self.measured,
            "expected": self.expected,
            "advice": self.advice,
            "seconds": round(self.seconds, 3),
        }


def ok(measured: str, expected: str = "") -> Finding:
    """A result as expected."""
    return Finding(status=Status.OK, measured=measured, expected=expected)


def warning(measured: str, expected: str, advice: str) -> Finding:
    """Jobs can run; somebody should look."""
    return Finding(status=Status.WARNING, measured=measured, expected=expected, advice=advice)


def critical(measured: str, expected: str, advice: str) -> Finding:
    """A job on this node would fail, hang or crawl."""
    return Finding(status=Status.CRITICAL, measured=measured, expected=expected, advice=advice)


def overall(statuses: Iterable[Status]) -> Status:
    """The worst observed status of several; UNKNOWN only if none was observed."""
    observed = [status for status in statuses if status in (Status.OK, Status.WARNING, Status.CRITICAL)]
    return max(observed, default=Status.UNKNOWN)
