"""The nodes of a job on the shelf."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from launcher.clusters.local.cluster import LocalCluster
from launcher.errors import LauncherError
from launcher.job.jobfile import JobSpec
from launcher.runner.memory import memory_dir


class ShelfCluster(LocalCluster):
    """Implements Cluster. Nodes are processes of the supervisor, as on the local cluster."""

    name = "shelf"

    def __init__(self, spec: JobSpec, job_dir: Path) -> None:
        super().__init__(spec, job_dir)
        self.allocation = os.environ["SHELF_JOB"]
        self.nodes = tuple(os.environ["SHELF_NODES"].split())
        self.run_id = f"shelf-{self.allocation}"
        self._mpi_dir = memory_dir(self.run_id) / ".mpi"

    async def ask_allocation(
        self, allocation: str, nodes: int, exclude: Collection[str], environment: Mapping[str, str]
    ) -> str:
        raise LauncherError("the shelf has no boosters")

    def _node_environment(self, node: str) -> dict[str, str]:
        return super()._node_environment(node) | {"SHELF_NODE": node}
