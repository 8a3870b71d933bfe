"""The way back to the scheduler, which starts the job again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from launcher.clusters.cluster import Cluster
from launcher.errors import LauncherError
from slurm import SlurmError

log = logging.getLogger(__name__)


class Requeue:
    """Done once, at the end, or begun before.

    Args:
        cluster: asks the scheduler.
        out: nodes that are not to be given again; looked at when the scheduler is asked.
    """

    def __init__(self, cluster: Cluster, out: Collection[str]) -> None:
        self._cluster = cluster
        self._out = out
        self._begun: asyncio.Task[str | None] | None = None

    def begin(self) -> None:
        """Asks at once, while all ranks stop and save: what is left of the job is being killed."""
        self._begun = self._begun or asyncio.create_task(self._ask())

    async def finish(self) -> str | None:
        """Returns when the job is requeued, or why it cannot be. The scheduler then ends what is left of it here."""
        if self._begun is not None and await self._begun is None:
            return None
        return await self._ask()

    async def _ask(self) -> str | None:
        try:
            await asyncio.to_thread(self._cluster.requeue, tuple(self._out))
        except (LauncherError, SlurmError) as error:
            log.warning("the job is not requeued: %s", error)
            return str(error)
        return None
