"""What a lower tier is: a place that outlives the nodes' memories, written a step at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from ckpt.format.manifest import Manifest, ShardPlace
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.catalog import CatalogEntry
from ckpt.tiers.claim import Claim

Removed = Callable[[str], object]


class Tier(Protocol):
    """Call order for one step: `prepare`, `begin`, then every node `write_node`, then `commit`, then `retain`.

    Of a tier that all nodes see, one process prepares, begins, commits and retains for all. Of a node-local one each
    node does so for itself: its manifest lists its own ranks' shards, and a step is whole when all nodes have theirs.

    All methods block, may be called from any thread, and raise OSError when the storage fails: FileNotFoundError only
    when it has answered that something is not there. A step counts only once `commit` has returned; whatever came
    before may be repeated.
    """

    node_local: bool
    namespace: str

    @property
    def where(self) -> str:
        """The namespace's folder or URL, for messages."""

    def prepare(self) -> float:
        """Makes the place, or checks that it is ours; returns when it was made, in seconds since the epoch.

        Raises:
            NamespaceError: it is another's.
        """

    def check(self) -> None:
        """Raises NamespaceError when what is there is another's; changes nothing."""

    def read_claim(self) -> Claim | None:
        """Which run the namespace belongs to, None when none has claimed it. Raises CorruptError."""

    def write_claim(self, claim: Claim) -> None:
        """Replaces the claim at once; after `prepare`."""

    def begin(self, save: SaveId) -> None:
        """Gets ready for the files of one step."""

    def write_node(
        self, save: SaveId, node_rank: int, shards: Sequence[tuple[ShardRecord, memoryview]]
    ) -> list[ShardPlace]:
        """Writes one node's shards durably and says where they lie."""

    def write_rank(self, save: SaveId, record: ShardRecord, data: memoryview) -> ShardPlace:
        """Writes one rank's shard durably into a file of its own; several writers of the same bytes do no harm."""

    def leave_note(self, save: SaveId, name: str, data: bytes) -> None:
        """Makes or replaces a small file beside the step's others, at once and durably."""

    def notes(self, save: SaveId) -> list[str]:
        """The names of all files of the step, its manifest's among them; none when there is no such step."""

    def read_note(self, save: SaveId, name: str) -> bytes:
        """What `leave_note` was given. Raises CorruptError for what is no small file."""

    def has_since(self, step: int) -> bool:
        """Whether a step as new as that is committed, by the names alone."""

    def commit(self, save: SaveId, world_size: int, places: Sequence[ShardPlace]) -> Manifest:
        """Publishes the step.

        Raises:
            CorruptError: the places are not one of each rank (node-local: not distinct ranks), all of this save.
        """

    def steps(self) -> list[SaveId]:
        """The committed steps, newest first. Raises OSError rather than leave out a newest that it cannot read."""

    def catalog(self) -> Iterator[CatalogEntry]:
        """Every step found, newest first, with the reason for each that cannot be restored or could not be read.

        They are listed at once, and each is read when it is asked for.
        """

    def read_manifest(self, save: SaveId) -> Manifest:
        """Raises CorruptError when it is damaged, FileNotFoundError when there is none."""

    def read(self, save: SaveId, place: ShardPlace, start: int, into: memoryview) -> None:
        """Fills `into` with a shard's bytes from its byte `start` on; not verified.

        Raises:
            CorruptError: what is stored is not a plain file, or ends before.
        """

    def data_path(self, save: SaveId, file: str) -> Path | None:
        """Where a process of this node can map a file that a manifest names; None when the tier is no file system."""

    def quarantine(self, name: str, reason: str) -> str:
        """Renames a step's directory so that no restore offers it and no retention counts it; says where it is now.

        Args:
            name: of the directory, as `catalog` tells it.
            reason: kept with it, for people.
        """

    def quarantined(self) -> list[tuple[str, str]]:
        """The names and reasons of what was quarantined."""

    def retain(
        self, keep: int, running: SaveId | None, complete: Collection[SaveId] | None = None,
        removed: Removed = lambda name: None,
    ) -> list[str]:  # fmt: skip
        """Removes what newer committed steps have made superfluous; returns the names removed.

        Args:
            keep: the newest committed steps that stay.
            running: the save that is being written now; stays.
            complete: of a node-local tier, the saves that all nodes have committed: only they count. None: all do.
            removed: told the name of each when it is gone.
        """


@runtime_checkable
class NodeTier(Tier, Protocol):
    """A tier on a node's own disk. It needs no claim: the kernel knows whether another run on the node lives."""

    def occupy(self, holder: str) -> None:
        """Bars every other run from this node's folder until `leave`; `holder` names ours.

        Raises:
            Occupied: another run is there.
            NamespaceError, ConfigError: the folder is another's, or cannot be made.
            OSError: the disk cannot be written.
        """

    def leave(self) -> None:
        """Lets others in."""
