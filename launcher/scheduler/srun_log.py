"""Which nodes an srun could not start its tasks on: it says so in words, and its exit code says nothing.

Slurm ends such a step on all its nodes, --no-kill or not: srun itself does, when a node refuses a task at once, or when
it has not answered within twice MessageTimeout (20 s by default; seen on 22.05).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# src/api/step_launch.c, the same words from 22.05 to 25.11.
_FAILED = re.compile(r"Task launch for .* failed on node ([^\s:]+): (.*)")


class Launches:
    """What has been written to an srun's log since now. Others may have written to it before.

    Args:
        log_path: of the log; it need not be there yet.
    """

    def __init__(self, log_path: Path) -> None:
        self._path = log_path
        try:
            self._begins_at = log_path.stat().st_size
        except FileNotFoundError:
            self._begins_at = 0

    def failed(self, nodes: Iterable[str]) -> dict[str, str]:
        """Which of these nodes no task was started on, with the reason."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._begins_at)
                text = log.read().decode(errors="replace")
        except OSError:
            return {}
        named = dict(_FAILED.findall(text))
        return {node: f"srun could start no process there: {named[node]}" for node in nodes if node in named}
