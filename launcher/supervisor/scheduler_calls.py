"""Performs the core's commands to the scheduler. The answers are inputs of the core."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from launcher.core import commands as do
from launcher.core import inputs
from launcher.core.inputs import Input
from launcher.errors import LauncherError, TooFewNodes
from launcher.leadership.requeue import until_answered
from launcher.scheduler.cluster import Cluster
from slurm import SlurmError

log = logging.getLogger(__name__)


class SchedulerCalls:
    """Performs each call in a thread, because Slurm may be slow to answer.

    Args:
        cluster: the cluster on which the job runs.
        bring_in: gives an input to the core.
    """

    def __init__(self, cluster: Cluster, bring_in: Callable[[Input], None]) -> None:
        self._cluster = cluster
        self._bring_in = bring_in
        self._giving_back = asyncio.Lock()

    async def ask_unusable(self, command: do.AskUnusable) -> None:
        """Ask which of the nodes cannot be used, and why."""
        unusable: dict[str, str] = {}
        error = None
        try:
            unusable = await asyncio.to_thread(self._cluster.unusable, command.nodes, command.allocations)
        except (LauncherError, SlurmError) as failure:
            error = str(failure)
        answer = inputs.UnusableAnswered(asked=command.nodes, purpose=command.purpose, unusable=unusable, error=error)
        self._bring_in(answer)

    async def give_back(self, node: str) -> None:
        """Return a node to the scheduler, one after the other: each request names the nodes that stay."""
        async with self._giving_back:
            try:
                await asyncio.to_thread(self._cluster.give_back, node)
            except (LauncherError, SlurmError) as error:
                log.warning("%s, which the job has left, stays in its allocation: %s", node, error)

    async def ask_why_terminated(self) -> None:
        """Ask why Slurm has sent a SIGTERM."""
        why = await asyncio.to_thread(self._cluster.why_terminated)
        self._bring_in(inputs.TerminationExplained(why=why))

    async def ask_time_left(self) -> None:
        """Ask for the time until the time limit."""
        try:
            left_s = await asyncio.to_thread(self._cluster.time_left_s)
            self._bring_in(inputs.TimeLeftAnswered(left_s=left_s))
        except (LauncherError, SlurmError) as error:
            log.warning("cannot get the time limit: %s", error)
            self._bring_in(inputs.TimeLeftAnswered(left_s=None))

    async def requeue(self, command: do.Requeue) -> None:
        """Requeue the job, once the scheduler answers."""
        answer = inputs.Requeued()
        try:
            await until_answered(lambda: self._cluster.requeue(command.exclude))
        except (LauncherError, SlurmError) as failure:
            log.warning("cannot requeue the job: %s", failure)
            answer = inputs.Requeued(error=str(failure), lacks_nodes=isinstance(failure, TooFewNodes))
        self._bring_in(answer)
