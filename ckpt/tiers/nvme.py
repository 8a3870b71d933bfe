"""The node-local tier: each node stores the shards of its own ranks on its own disk.

<path>/<node>/<namespace>/   the same layout as the shared tier's folder; each manifest lists only this node's shards

The node's name is part of the path because the nodes of a local cluster share one disk. A step is complete if the nodes
have all its shards, on disk or in memory. The agents of all nodes determine that together.
"""

from __future__ import annotations

import os
from pathlib import Path

from ckpt.errors import NamespaceError
from ckpt.format.file_lock import locked
from ckpt.tiers.catalog import is_of_run
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.throttle import Throttle

LOCK = "owner.lock"
_WORD_BYTES = 500


class DiskInUse(NamespaceError):
    """A live run uses the folder."""


class NvmeTier(SharedTier):
    """One node's part; see `ckpt.tiers.tier.Tier` for the contract."""

    kind = "nvme"
    node_local = True

    def __init__(self, path: Path | str, namespace: str, *, node: str, throttle: Throttle | None = None) -> None:
        """
        Args:
            path: a directory on the node's own disk, with the same path on all nodes.
        """
        super().__init__(Path(path) / node, namespace, throttle=throttle)
        self.node = node
        self._lock = -1

    def occupy(self, holder: str, timeout_s: float = 0.0) -> None:
        """Lock this node's folder against all other runs until `leave`.

        The kernel releases the lock when the process ends, so no claim is needed.

        Args:
            holder: name of this run, for the errors of other runs.
            timeout_s: how long to wait for another process to release the lock. A process that was killed closes its
                files last, so that it may look dead while it holds the lock.

        Raises:
            DiskInUse: another process holds the lock.
            NamespaceError, ConfigError: the folder belongs to another namespace or user, or cannot be made.
        """
        self.prepare()
        if self._lock >= 0:
            return
        path = self.folder / LOCK
        try:
            self._lock = locked(path, timeout_s)
        except BlockingIOError:
            with open(path, "rb") as file:
                found = file.read(_WORD_BYTES).decode(errors="replace")
            raise DiskInUse(
                f"{self.folder}: in use by {found or 'another run'}; wait for it to end, cancel it, or choose another "
                "namespace"
            ) from None
        try:
            os.truncate(self._lock, 0)
            os.pwrite(self._lock, holder.encode()[:_WORD_BYTES], 0)
        except OSError:
            self.leave()
            raise

    def leave(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def remove_run(self, run_id: str, timeout_s: float = 0.0) -> list[str]:
        """Remove what a run has written on this node. For a run that continues without the node.

        Steps of other runs stay, and steps in quarantine.

        Args:
            timeout_s: how long to wait for the run's own agent to end.

        Returns:
            The names of the removed steps.

        Raises:
            DiskInUse, NamespaceError, ConfigError, OSError: as `occupy`, or a step cannot be removed.
        """
        if not self.folder.is_dir():
            return []
        self.occupy(f"run {run_id}, which removes its steps", timeout_s)
        try:  # listed once the agent writes no more
            names = [name for name in self._directories() if is_of_run(name, run_id)]
            self._remove(names, lambda name: None)
        finally:
            self.leave()
        return names
