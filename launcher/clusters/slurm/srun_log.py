"""Reads from srun's log the nodes on which it could not start its tasks. srun's exit code does not show them.

srun ends such a step on all its nodes, even with --no-kill. It does so when a node refuses a task, or when a node has
not answered within MessageTimeout + BatchStartTimeout (20 s by default; seen on 22.05), or twice that time (24.11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

# src/api/step_launch.c; the text is the same from 22.05 to 25.11.
_FAILED = re.compile(r"Task launch for .* failed on node ([^\s:]+): (.*)")
# A node's slurmstepd could not prepare the task. For example its PMIx plugin finds the files of a step of this number
# from an earlier start of the job, whose slurmstepd was killed. Where no node could prepare its task, the step is at
# fault: a slurmctld that was killed forgets the steps of its last seconds and gives their numbers again, while their
# files are still on every node (both seen on 22.05). The next step has another number.
_TASK_FAILED = re.compile(r"error: task (\d+) launch failed: (.*)")
# Slurm is ending or requeueing the job, which says nothing about the node (src/common/slurm_errno.c).
_OF_THE_JOB = ("Job credential revoked", "Job/step already completing or completed", "Invalid job id specified")


class Launches:
    """The text that is written to an srun's log from now on. Earlier sruns may have written to the same log.

    Args:
        log_path: path of the log, which need not exist yet.
        tasks: the node of each task; empty if a task that fails says nothing about its node.
    """

    def __init__(self, log_path: Path, tasks: Sequence[str] = ()) -> None:
        self._path = log_path
        self._tasks = tasks
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
        of_tasks = [(self._tasks[int(task)], why) for task, why in _TASK_FAILED.findall(text) if self._has(int(task))]
        if len(self._tasks) > 1 and {node for node, _ in of_tasks} == {*self._tasks}:
            of_tasks = []
        found = (*of_tasks, *_FAILED.findall(text))
        named = {node: reason for node, reason in found if not reason.startswith(_OF_THE_JOB)}
        return {node: f"srun could start no process there: {named[node]}" for node in nodes if node in named}

    def _has(self, task: int) -> bool:
        return task < len(self._tasks)
