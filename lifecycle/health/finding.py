"""The result of one health check."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class Status(enum.IntEnum):
    """The exit codes of Nagios plugins, and SKIPPED for what this node does not have.

    UNKNOWN is "could not observe". Neither it nor SKIPPED is healthy or failed: nothing is ever done about a node for
    them.
    """

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3
    SKIPPED = 4

    @property
    def word(self) -> str:
        """As people, JSON and the verdict file have it."""
        return self.name.lower()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check measured, what it expected, and what to do about a difference.

    Attributes:
        check: the check's name.
        seconds: how long it took.
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


def fit(measured: str, expected: str = "") -> Finding:
    """The check has nothing to complain of."""
    return Finding(status=Status.OK, measured=measured, expected=expected)


def weak(measured: str, expected: str, advice: str) -> Finding:
    """Jobs can run; somebody should look."""
    return Finding(status=Status.WARNING, measured=measured, expected=expected, advice=advice)


def unfit(measured: str, expected: str, advice: str) -> Finding:
    """A job on this node would fail, hang or crawl."""
    return Finding(status=Status.CRITICAL, measured=measured, expected=expected, advice=advice)


def overall(statuses: Iterable[Status]) -> Status:
    """One status for many: the worst that was observed; UNKNOWN only where nothing was."""
    observed = [status for status in statuses if status in (Status.OK, Status.WARNING, Status.CRITICAL)]
    return max(observed, default=Status.UNKNOWN)
