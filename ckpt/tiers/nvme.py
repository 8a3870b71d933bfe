"""The node-local tier: each node keeps the shards of its own ranks on a disk of its own.

<path>/<node>/<namespace>/   laid out as the shared tier's folder; each manifest lists this node's shards only

The node's name is part of the path because the nodes of a local cluster have one disk between them. A step is whole
when the nodes' parts make it up, memory included: that is for the agents of all nodes together to say.
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
            path: a directory on the node's own disk, of the same name on all nodes.
            namespace: name of our folder below it.
            node: this node's name.
            throttle: limits how fast this process writes.
        """
        super().__init__(Path(path) / node, namespace, throttle=throttle)
        self.node = node
        self._occupancy: Occupancy | None = None

    def occupy(self, holder: str) -> None:
        """Bars every other run from this node's folder until `leave`; `holder` names ours.

        It needs no claim: the kernel knows whether another run on the node lives.

        Raises:
            DiskInUse: another run is there.
            NamespaceError, ConfigError: the folder is another's, or cannot be made.
            OSError: the disk cannot be written.
        """
        self.prepare()
        self._occupancy = self._occupancy or Occupancy(self.folder, holder)

    def leave(self) -> None:
        """Lets others in."""
        if self._occupancy is not None:
            self._occupancy.release()
            self._occupancy = None
