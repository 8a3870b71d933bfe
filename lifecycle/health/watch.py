"""What the node's health checks have found since this boot, from the verdict that they write as root.

A job's runner follows it, because Slurm's HealthCheckProgram runs the checks during jobs too. Where an administrator
lets it drain nodes, Slurm reports the failure as well. Elsewhere only this file does.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from lifecycle.health.check import VERDICT_FILE, CheckedNode
from lifecycle.health.finding import Status
from lifecycle.health.verdict import boot_id, read_verdict

log = logging.getLogger(__name__)

_MOST_CHARS = 500


class HealthWatch:
    """Follows the verdict of this node.

    Args:
        path: the file; it may not be there.

    Attributes:
        reason: the critical findings on one line; None if there are none.
    """

    def __init__(self, path: Path = VERDICT_FILE) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self.reason: str | None = None

    def look(self) -> bool:
        """Reads the verdict if it has changed. Returns whether the reason has."""
        try:
            facts = os.stat(self._path)
        except OSError:
            return False
        seen = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        if seen == self._seen:
            return False
        self._seen, before = seen, self.reason
        try:
            verdict = read_verdict(self._path)
        except (OSError, ValueError) as error:
            log.warning("the health of this node is not known: %s", error)
            return False
        is_of_this_boot = verdict.boot_id == boot_id(CheckedNode())
        failed = [row for row in verdict.checks if row["status"] == Status.CRITICAL.word and is_of_this_boot]
        words = (f"{row['name']}: {row.get('measured')}, expected {row.get('expected')}" for row in failed)
        self.reason = " ".join("; ".join(words).split())[:_MOST_CHARS] or None
        return self.reason != before
