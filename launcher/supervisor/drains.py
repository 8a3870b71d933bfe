"""Follows which of the job's nodes the scheduler drains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from launcher.core.inputs import Input, NodesDrained
from launcher.errors import LauncherError
from launcher.scheduler.cluster import Cluster
from slurm import SlurmError

log = logging.getLogger(__name__)

LOOK_S = 30.0  # one request to the scheduler for each job


async def follow_drains(cluster: Cluster, nodes: Callable[[], Collection[str]], put: Callable[[Input], None]) -> None:
    """Asks the scheduler every LOOK_S, and gives the core what has changed. A scheduler that does not answer is asked
    again later: nothing is known then, so nothing changes.

    Args:
        cluster: the cluster of the job.
        nodes: returns the nodes whose runners are connected.
        put: gives an input to the core.
    """
    known: dict[str, str] = {}
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            found = await asyncio.to_thread(cluster.drained, nodes())
        except (LauncherError, SlurmError) as error:
            log.warning("which nodes are drained is not known: %s", error)
            continue
        if found != known:
            known = found
            put(NodesDrained(reasons=found))
