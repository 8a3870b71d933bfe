"""Reads from srun's log the nodes on which it could not start its tasks. srun's exit code does not show them.

srun ends such a step on all its nodes, even with --no-kill. It does so when a node refuses a task, or when a node has
not answered within twice MessageTimeout (20 s by default; seen on 22.05).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

# src/api/step_launch.c; the text is the same from 22.05 to 25.11.
_FAILED = re.compile(r"Task launch for .* failed on node ([^\s:]+): (.*)")
# Slurm is ending or requeueing the job, which says nothing about the node (src/common/slurm_errno.c).
_OF_THE_JOB = ("Job credential revoked", "Job/step already completing or completed", "Invalid job id specified")


class Launches:
    """The text that is written to an srun's log from now on. Earlier sruns may have written to the same log.

    Args:
        log_path: path of the log, which need not exist yet.
    """

    def __init__(self, log_path: Path) -> None:
        self._path = log_path
        try:
            self._begins_at = log_path.stat().st_size
        except FileNotFoundError:
            self._begins_at = 0

    def failed(self, nodes: Iterable[str]) -> dict[str, str]:
        """The nodes, of the given ones, that refused a task, with the reasons."""
        try:
            with self._path.open("rb") as log:
                log.seek(self._begins_at)
                text = log.read().decode(errors="replace")
        except OSError:
            return {}
        named = {node: reason for node, reason in _FAILED.findall(text) if not reason.startswith(_OF_THE_JOB)}
        return {node: f"srun could start no process there: {named[node]}" for node in nodes if node in named}
