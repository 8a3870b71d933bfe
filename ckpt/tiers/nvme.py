"""The node-local tier: each node stores the shards of its own ranks on its own disk.

<path>/<node>/<namespace>/   the same layout as the shared tier's folder; each manifest lists only this node's shards

The node's name is part of the path because the nodes of a local cluster share one disk. A step is complete if the nodes
have all its shards, on disk or in memory. The agents of all nodes determine that together.
"""

from __future__ import annotations

from pathlib import Path

from ckpt.tiers.occupancy import Occupancy
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.throttle import Throttle


class NvmeTier(SharedTier):
    """One node's part; see `ckpt.tiers.tier.Tier` for the contract."""

    node_local = True

    def __init__(self, path: Path | str, namespace: str, *, node: str, throttle: Throttle | None = None) -> None:
        """
        Args:
            path: a directory on the node's own disk, with the same path on all nodes.
            namespace: name of the namespace, and of its folder.
            node: this node's name.
            throttle: limits the rate at which this process writes.
        """
        super().__init__(Path(path) / node, namespace, throttle=throttle)
        self.node = node
        self._occupancy: Occupancy | None = None

    def occupy(self, holder: str) -> None:
        """Lock this node's folder against all other runs until `leave`. `holder` names this run in their errors.

        The kernel releases the lock when the process ends, so no claim is needed.

        Raises:
            DiskInUse: another run holds the lock.
            NamespaceError, ConfigError: the folder belongs to another namespace or user, or cannot be made.
            OSError: the disk cannot be written.
        """
        self.prepare()
        self._occupancy = self._occupancy or Occupancy(self.folder, holder)

    def leave(self) -> None:
        """Release the lock."""
        if self._occupancy is not None:
            self._occupancy.release()
            self._occupancy = None
