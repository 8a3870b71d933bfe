"""Nodes that were lost and come back: their runners were unreachable for a while, and their memory still serves."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

from launcher.clusters.cluster import Cluster
from launcher.supervisor.host import Host
from launcher.supervisor.links import Links
from slurm import SlurmError

log = logging.getLogger(__name__)

MAX_RETURNS = 3  # of one node; a node that is lost again and again costs an attempt each time


class Returns:
    """Decides whether a lost node is a spare again.

    Args:
        host: the supervisor.
        links: the runners' connections.
        cluster: says whether a process can be started on the node.
    """

    def __init__(self, host: Host, links: Links, cluster: Cluster) -> None:
        self._host = host
        self._links = links
        self._cluster = cluster
        self._counts: Counter[str] = Counter()
        self._ending: dict[str, int] = {}  # node -> the attempt whose workers it ends
        self._asking: set[asyncio.Task[None]] = set()

    def came(self, node: str, attempt: int | None) -> None:
        """A lost node's runner has connected again.

        Args:
            node: the node.
            attempt: the attempt whose workers it may still have.
        """
        self._counts[node] += 1
        task = asyncio.create_task(self._judge(node, attempt))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def killed(self, node: str, attempt: int, left: list[Any]) -> None:
        """A node has ended an attempt's workers; `left` are processes that do not end."""
        if self._ending.get(node) == attempt:
            del self._ending[node]
            self._decide(node, f"processes {left} do not end; reboot the node" if left else "")

    async def _judge(self, node: str, attempt: int | None) -> None:
        """A spare runs nothing: workers of the attempt in which it was lost end first."""
        against = ""
        if self._counts[node] > MAX_RETURNS:
            against = f"it was lost {self._counts[node]} times"
        else:
            try:
                against = (await asyncio.to_thread(self._cluster.unusable, (node,))).get(node, "")
            except SlurmError as error:
                against = f"the scheduler does not say whether it can be used: {error}"
        if attempt is None or against:
            self._decide(node, against)
        else:
            self._ending[node] = attempt
            self._links.send(node, {"op": "kill", "attempt": attempt})

    def _decide(self, node: str, against: str) -> None:
        if against:
            log.warning("%s is back and stays out: %s", node, against)
            self._links.dismiss(node, forget=True)
        else:
            self._host.take_back(node)
