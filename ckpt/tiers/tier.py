"""What a lower tier is: a place that outlives the nodes' memories, written a step at a time.

`Tier` has what all tiers do alike; a subclass gives it the verbs of its storage and what storages do in ways of their
own: who may write there, shards, quarantine and removal.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from ckpt.errors import CheckpointError, CorruptError
from ckpt.format.manifest import MAX_BYTES, NAME, Manifest, ShardPlace, new_manifest, parse_manifest
from ckpt.format.shard_record import SaveId, ShardRecord, seal_json
from ckpt.tiers.catalog import CatalogEntry, committed, directory_name, entries_of, steps_since
from ckpt.tiers.claim import CLAIM, Claim, parse_claim
from ckpt.tiers.claim import MAX_BYTES as CLAIM_BYTES
from ckpt.tiers.direct_io import PAGE_BYTES
from ckpt.tiers.quarantine import QUARANTINED, REASON, parse_reason

SHARD_ALIGN_BYTES = PAGE_BYTES  # a shard can be mapped where it lies, and written past the page cache

Removed = Callable[[str], object]


class Tier(ABC):
    """Call order for one step: `prepare`, `begin`, then every node `write_node`, then `commit`, then `retain`.

    Of a tier that all nodes see, one process prepares, begins, commits and retains for all. Of a node-local one each
    node does so for itself: its manifest lists its own ranks' shards, and a step is whole when all nodes have theirs.

    All methods block, may be called from any thread, and raise OSError when the storage fails: FileNotFoundError only
    when it has answered that something is not there. A step counts only once `commit` has returned; whatever came
    before may be repeated.
    """

    node_local = False
    namespace: str
    _at_once = 1  # manifests read in parallel

    @property
    @abstractmethod
    def where(self) -> str:
        """The namespace's folder or URL, for messages."""

    @abstractmethod
    def prepare(self) -> float:
        """Makes the place, or checks that it is ours; returns when it was made, in seconds since the epoch.

        Raises:
            NamespaceError: it is another's.
        """

    @abstractmethod
    def check(self) -> None:
        """Raises NamespaceError when what is there is another's; changes nothing."""

    def read_claim(self) -> Claim | None:
        """Which run the namespace belongs to, None when none has claimed it. Raises CorruptError."""
        try:
            return parse_claim(self._get(CLAIM, CLAIM_BYTES), f"{self.where}/{CLAIM}")
        except FileNotFoundError:
            return None

    def write_claim(self, claim: Claim) -> None:
        """Replaces the claim at once; after `prepare`."""
        self._put(CLAIM, claim.to_bytes(), sync=False)  # one that a crash takes along has outlived its run

    def begin(self, save: SaveId) -> None:
        """Gets ready for the files of one step."""
        self._make_directory(save)

    def write_node(
        self, save: SaveId, node_rank: int, shards: Sequence[tuple[ShardRecord, memoryview]]
    ) -> list[ShardPlace]:
        """Writes one node's shards durably and says where they lie."""
        return self._write(save, f"node-{node_rank:05d}.data", shards)

    def write_rank(self, save: SaveId, record: ShardRecord, data: memoryview) -> ShardPlace:
        """Writes one rank's shard durably into a file of its own; several writers of the same bytes do no harm."""
        return self._write(save, f"rank-{record.rank:05d}.data", [(record, data)])[0]

    def leave_note(self, save: SaveId, name: str, data: bytes) -> None:
        """Makes or replaces a small file beside the step's others, at once and durably."""
        self._make_directory(save)
        self._put(f"{directory_name(save)}/{name}", data)

    def notes(self, save: SaveId) -> list[str]:
        """The names of all files of the step, its manifest's among them; none when there is no such step."""
        return self._files(directory_name(save))

    def read_note(self, save: SaveId, name: str) -> bytes:
        """What `leave_note` was given. Raises CorruptError for what is no small file."""
        return self._get(f"{directory_name(save)}/{name}", MAX_BYTES)

    def has_since(self, step: int) -> bool:
        """Whether a step as new as that is committed, by the names alone."""
        return any(self._exists(f"{name}/{NAME}") for name in steps_since(self._directories(), step))

    def commit(self, save: SaveId, world_size: int, places: Sequence[ShardPlace]) -> Manifest:
        """Publishes the step.

        Raises:
            CorruptError: the places are not one of each rank (node-local: not distinct ranks), all of this save.
        """
        manifest = new_manifest(save, world_size, time.time(), places, partial=self.node_local)
        self._put(f"{directory_name(save)}/{NAME}", seal_json(manifest.to_json()))
        return manifest

    def steps(self) -> list[SaveId]:
        """The committed steps, newest first. Raises OSError rather than leave out a newest that it cannot read."""
        return committed(self.catalog(), self.where)

    def catalog(self) -> Iterator[CatalogEntry]:
        """Every step found, newest first, with the reason for each that cannot be restored or could not be read.

        They are listed at once, and each is read when it is asked for.
        """
        return self._entries(self._directories())

    def read_manifest(self, save: SaveId) -> Manifest:
        """Raises CorruptError when it is damaged, FileNotFoundError when there is none."""
        manifest = self._manifest(directory_name(save))
        if manifest.save != save or manifest.namespace != self.namespace:
            where = f"{self.where}/{directory_name(save)}"
            raise CorruptError(f"{where}: manifest is of {manifest.save}, expected {save}")
        return manifest

    @abstractmethod
    def read(self, save: SaveId, place: ShardPlace, start: int, into: memoryview) -> None:
        """Fills `into` with a shard's bytes from its byte `start` on; not verified.

        Raises:
            CorruptError: what is stored is not a plain file, or ends before.
        """

    @abstractmethod
    def data_path(self, save: SaveId, file: str) -> Path | None:
        """Where a process of this node can map a file that a manifest names; None when the tier is no file system."""

    @abstractmethod
    def quarantine(self, name: str, reason: str) -> str:
        """Renames a step's directory so that no restore offers it and no retention counts it; says where it is now.

        Args:
            name: of the directory, as `catalog` tells it.
            reason: kept with it, for people.
        """

    def quarantined(self) -> list[tuple[str, str]]:
        """The names and reasons of what was quarantined."""
        return [(name, self._reason(name)) for name in sorted(self._directories()) if name.startswith(QUARANTINED)]

    @abstractmethod
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

    # of a storage: paths are relative to the namespace's folder or URL, as of its manifest: `<step's directory>/<file>`

    @abstractmethod
    def _get(self, path: str, max_bytes: int) -> bytes:
        """A small file. Raises CorruptError for what is larger, or no plain file."""

    @abstractmethod
    def _put(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Makes or replaces a small file at once; durably where `sync`."""

    @abstractmethod
    def _put_shards(self, save: SaveId, file: str, pieces: Sequence[tuple[int, memoryview]]) -> None:
        """Makes or replaces a large file durably: pieces by their first byte, in order."""

    @abstractmethod
    def _exists(self, path: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def _files(self, directory: str) -> list[str]:
        """The names in a step's directory; none where there is no such."""

    @abstractmethod
    def _directories(self) -> Collection[str]:
        """The names of all directories; other names may be among them."""

    @abstractmethod
    def _make_directory(self, save: SaveId) -> None:
        """Makes a step's directory where the storage has such."""

    # of all tiers

    def _write(self, save: SaveId, file: str, shards: Sequence[tuple[ShardRecord, memoryview]]) -> list[ShardPlace]:
        """May be repeated until the step is committed."""
        directory = directory_name(save)
        if self._exists(f"{directory}/{NAME}"):
            where = f"{self.where}/{directory}"
            raise CheckpointError(f"{where}: step {save.step} is committed there already; it is never written again")
        places = node_places(file, [record for record, _ in shards])
        self._put_shards(save, file, [(place.offset, data) for place, (_, data) in zip(places, shards, strict=True)])
        return places

    def _entries(self, names: Iterable[str]) -> Iterator[CatalogEntry]:
        return entries_of(names, self.namespace, self._manifest, at_once=self._at_once)

    def _manifest(self, directory: str) -> Manifest:
        return parse_manifest(self._get(f"{directory}/{NAME}", MAX_BYTES), partial=self.node_local)

    def _reason(self, directory: str) -> str:
        try:
            return parse_reason(self._get(f"{directory}/{REASON}", MAX_BYTES))
        except (FileNotFoundError, NotADirectoryError, CorruptError):
            return parse_reason(b"")


def node_places(file: str, records: Sequence[ShardRecord]) -> list[ShardPlace]:
    """Where the shards of a node lie in its file: one after another, each at a multiple of SHARD_ALIGN_BYTES."""
    places, offset = [], 0
    for record in records:
        places.append(ShardPlace(rank=record.rank, file=file, offset=offset, record=record))
        offset += -(-record.layout.nbytes // SHARD_ALIGN_BYTES) * SHARD_ALIGN_BYTES
    return places
