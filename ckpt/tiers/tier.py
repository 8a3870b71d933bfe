"""What a lower tier is: a place that outlives the nodes' memories, written a step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ckpt.record.manifest import Manifest, ShardPlace
from ckpt.record.shard import SaveId, ShardRecord
from ckpt.tiers.catalog import Entry


class Tier(Protocol):
    """Call order for one step: every node `write_node`, then one process `commit`, then `retain`.

    All methods block, may be called from any thread, and raise OSError when the storage fails. A step counts only once
    `commit` has returned; whatever came before may be repeated.
    """

    def prepare(self) -> float:
        """Makes the place, or checks that it is ours; returns when it was made, in seconds since the epoch.

        Raises:
            NamespaceError: it is another's.
        """

    def write_node(
        self, save: SaveId, node_rank: int, shards: Sequence[tuple[ShardRecord, memoryview]]
    ) -> list[ShardPlace]:
        """Writes one node's shards durably and says where they lie."""

    def commit(self, save: SaveId, world_size: int, places: Sequence[ShardPlace]) -> Manifest:
        """Publishes the step. Raises CorruptError unless the places are one of each rank, all of this save."""

    def steps(self) -> list[SaveId]:
        """The committed steps, newest first."""

    def catalog(self) -> list[Entry]:
        """Every step found, newest first, with the reason for each that cannot be restored."""

    def read_manifest(self, save: SaveId) -> Manifest:
        """Raises CorruptError when it is damaged, FileNotFoundError when there is none."""

    def data_path(self, save: SaveId, file: str) -> Path:
        """Where a file that a manifest names lies."""

    def retain(self, keep: int, running: SaveId | None) -> list[str]:
        """Removes what is older than the `keep` newest committed steps; returns the names removed."""
