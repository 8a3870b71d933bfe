"""The interface of a lower tier: storage that outlives the nodes' memory, written one step at a time.

`Tier` implements what is common to all tiers. A subclass implements the calls to its storage, and what differs between
storages: ownership, shards, quarantine and removal.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

from ckpt.errors import CheckpointError, ConfigError, CorruptError
from ckpt.format.lasting import NOTHING_ELSE, Lasting
from ckpt.format.line import Line, newest_line
from ckpt.format.manifest import NAME, Manifest, ShardPlace, new_manifest, parse_manifest
from ckpt.format.shard_record import MAX_RECORD_BYTES, SaveId, ShardRecord, seal_json, unseal_json
from ckpt.tiers.catalog import (
    CatalogEntry,
    committed,
    directory_name,
    entries_of,
    line_ids,
    newest_first,
)
from ckpt.tiers.claim import CLAIM, MAX_CLAIM_BYTES, Claim, parse_claim
from ckpt.tiers.direct_io import PAGE_BYTES
from ckpt.tiers.quarantine import QUARANTINED, REASON, parse_reason
from ckpt.tiers.retention import superfluous

SHARD_ALIGN_BYTES = PAGE_BYTES  # so that a shard can be mapped in its file, and written without the page cache

_LINE = "line-"
_LINE_FILE = "line.json"
_LINE_BYTES = 65536
_PIN = "pin-"  # prefix of the directory that pins the step of the rest of its name
_PIN_FILE = "pin.json"
_LASTING = "lasting.json"
_LASTING_BYTES = 65536

Removed = Callable[[str], object]

log = logging.getLogger(__name__)


class Tier(ABC):
    """Call order for one step: `prepare`, `begin`, then every node `write_node`, then `commit`, then `retain`.

    In a tier that all nodes share, one process calls prepare, begin, commit and retain for all nodes. In a node-local
    tier each node calls them for itself: its manifest lists only its own ranks' shards, and a step is complete when all
    nodes have committed theirs.

    All methods block and may be called from any thread. They raise OSError if the storage fails, and FileNotFoundError
    only if the storage has answered that the file does not exist. A step counts only after `commit` has returned. All
    calls before that may be repeated.
    """

    kind: str  # its name in the job file
    node_local = False
    namespace: str
    _at_once = 1  # number of manifests that are read in parallel

    @property
    @abstractmethod
    def where(self) -> str:
        """The namespace's folder or URL, for messages."""

    @abstractmethod
    def prepare(self) -> float:
        """Make the namespace's folder, or check that it belongs to this namespace and user.

        Returns:
            The time at which the folder was made, in seconds since the epoch.

        Raises:
            NamespaceError: the folder belongs to another namespace or user.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise NamespaceError if the folder belongs to another namespace or user. Changes nothing."""

    def read_claim(self) -> Claim | None:
        """Read the claim; None if no run has claimed the namespace. Raises CorruptError if the claim is damaged."""
        try:
            return parse_claim(self._get(CLAIM, MAX_CLAIM_BYTES), f"{self.where}/{CLAIM}")
        except FileNotFoundError:
            return None

    def write_claim(self, claim: Claim) -> None:
        """Replace the claim atomically. Call `prepare` before."""
        self._put(CLAIM, claim.to_bytes(), sync=False)  # if a crash loses the claim, its run has ended too

    def begin(self, save: SaveId) -> None:
        """Prepare for the files of one step."""
        self._make_directory(save)

    def write_node(
        self, save: SaveId, node_rank: int, shards: Sequence[tuple[ShardRecord, memoryview]]
    ) -> list[ShardPlace]:
        """Write one node's shards durably; returns their places."""
        return self._write(save, f"node-{node_rank:05d}.data", shards)

    def commit(self, save: SaveId, world_size: int, places: Sequence[ShardPlace]) -> Manifest:
        """Write the manifest, which makes the step restorable.

        Raises:
            CorruptError: the places are not exactly one for each rank (node-local: not of distinct ranks), or one is
                of another save.
        """
        manifest = new_manifest(save, world_size, time.time(), places, partial=self.node_local)
        self._put(f"{directory_name(save)}/{NAME}", seal_json(manifest.to_json()))
        return manifest

    def steps(self) -> list[SaveId]:
        """The committed steps: the newest line's descent, newest first, then those of other lines.

        Raises OSError if the newest one cannot be read.
        """
        saves = committed(self.catalog(), self.where)
        return newest_first(saves, newest_line(saves, self.lines()))

    def begin_line(self, line: Line) -> None:
        """Record a line that has no save yet, durably: a rollback. The next restore continues from its origin."""
        self._make_record(f"{_LINE}{line.id}")
        self._put(f"{_LINE}{line.id}/{_LINE_FILE}", seal_json(line.to_json()))

    def lines(self) -> list[Line]:
        """The lines of `begin_line`. Damaged records are logged and left out."""
        found = []
        for name in sorted(self._directories()):
            if name.startswith(_LINE):
                try:
                    found.append(Line.from_json(unseal_json(self._get(f"{name}/{_LINE_FILE}", _LINE_BYTES))))
                except FileNotFoundError:
                    continue  # killed before the record was written: nothing has begun
                except CorruptError as error:
                    log.warning("%s/%s: passed over: %s", self.where, name, error)
        return found

    def pin(self, save: SaveId, note: str) -> None:
        """Pin a committed step: retention and `gc` never remove it, until `unpin`.

        Args:
            note: text for people, such as who has pinned it and why.

        Raises:
            ConfigError: the step is not there any more. Then nothing is pinned.
        """
        name = directory_name(save)
        self._make_record(f"{_PIN}{name}")
        self._put(f"{_PIN}{name}/{_PIN_FILE}", seal_json({"note": note, "time": time.time()}))
        try:
            self.read_manifest(save)  # retention may have removed it since the caller has seen it
        except FileNotFoundError:
            self.unpin(name)
            where = f"{self.where}/{name}"
            raise ConfigError(f"{where}: was removed before it was pinned; list the steps with `ckpt ls`") from None

    def unpin(self, name: str) -> None:
        """Remove the pin of a step's directory, if it has one."""
        if name in self.pins():
            self._remove_record(f"{_PIN}{name}")

    def pins(self) -> set[str]:
        """The names of the pinned steps' directories. A pin counts from its first byte on."""
        return pins_in(self._directories())

    def pin_note(self, name: str) -> str:
        """The note of a pin, for people; "" if it has none that can be read."""
        try:
            return str(unseal_json(self._get(f"{_PIN}{name}/{_PIN_FILE}", _LASTING_BYTES))["note"])
        except (FileNotFoundError, CorruptError, KeyError, TypeError):
            return ""

    def write_lasting(self, lasting: Lasting) -> None:
        """Record what lasts here besides the newest steps, for commands that remove or list steps without a job."""
        if lasting != self.read_lasting():
            self._put(_LASTING, seal_json(lasting.to_json()))

    def read_lasting(self) -> Lasting:
        """What lasts here, as the last job has recorded it. Raises CorruptError if the record is damaged."""
        try:
            return Lasting.from_json(unseal_json(self._get(_LASTING, _LASTING_BYTES)))
        except FileNotFoundError:
            return NOTHING_ELSE

    def has_lines(self) -> bool:
        """Whether there may be steps of more than one line. Reads no manifest."""
        names = self._directories()
        return any(name.startswith(_LINE) for name in names) or len(line_ids(names)) > 1

    def catalog(self) -> Iterator[CatalogEntry]:
        """Yield every step, newest first, with the reason for each that cannot be restored or could not be read.

        The directories are listed at the call. Each manifest is read when its entry is needed.
        """
        return entries_of(self._directories(), self.namespace, self._manifest, at_once=self._at_once)

    def read_manifest(self, save: SaveId) -> Manifest:
        """Read the manifest of a step. Raises CorruptError if it is damaged, FileNotFoundError if there is none."""
        manifest = self._manifest(directory_name(save))
        if manifest.save != save or manifest.namespace != self.namespace:
            where = f"{self.where}/{directory_name(save)}"
            raise CorruptError(f"{where}: manifest is of {manifest.save}, expected {save}")
        return manifest

    @abstractmethod
    def read(self, save: SaveId, place: ShardPlace, start: int, into: memoryview) -> None:
        """Fill `into` with a shard's bytes from its byte `start` on, without verification.

        Raises:
            CorruptError: the file is not a regular file, or is too short.
        """

    @abstractmethod
    def data_path(self, save: SaveId, file: str) -> Path | None:
        """The path at which this node's processes can map a file of a manifest; None if the tier has no files."""

    @abstractmethod
    def quarantine(self, name: str, reason: str) -> str:
        """Quarantine a step: rename its directory, so that it is neither restored nor counted for retention.

        Args:
            name: name of the directory, from `catalog`.
            reason: text for people, stored with the step.

        Returns:
            The new path or URL.
        """

    def quarantined(self) -> list[tuple[str, str]]:
        """The names of quarantined steps, with the reasons."""
        return [(name, self._reason(name)) for name in sorted(self._directories()) if name.startswith(QUARANTINED)]

    @abstractmethod
    def retain(
        self,
        keep: int,
        complete: Collection[SaveId] | None = None,
        removed: Removed = lambda name: None,
        *,
        left: bool = False,
        lasting: Lasting = NOTHING_ELSE,
    ) -> list[str]:
        """Remove steps that newer committed steps have made superfluous; returns the names of the removed ones.

        Pinned steps stay. A step that is pinned while it is being removed comes back.

        Args:
            complete: in a node-local tier, the saves that all nodes have committed; only these count. None: all count.
            left: whether to remove the steps of all lines but the newest one's descent too.
            lasting: what stays besides the newest steps.
        """

    # Calls to the storage. Paths are relative to the namespace's folder or URL, such as `<step's directory>/<file>`.

    @abstractmethod
    def _get(self, path: str, max_bytes: int) -> bytes:
        """Read a small file. Raises CorruptError if it is larger than `max_bytes`, or not a regular file."""

    @abstractmethod
    def _put(self, path: str, data: bytes, *, sync: bool = True) -> None:
        """Write a small file atomically; durably if `sync`."""

    @abstractmethod
    def _put_shards(self, save: SaveId, file: str, pieces: Sequence[tuple[int, memoryview]]) -> None:
        """Write a large file durably. Each piece is (first byte, bytes), in order."""

    @abstractmethod
    def _exists(self, path: str) -> bool:
        """Whether the file exists."""

    @abstractmethod
    def _make_record(self, name: str) -> None:
        """Makes the directory of a record, of a line or a pin, if the storage has directories."""

    @abstractmethod
    def _remove_record(self, name: str) -> None:
        """Removes a directory that `_make_record` has made, with its file."""

    @abstractmethod
    def _directories(self) -> Collection[str]:
        """The names of all directories; the result may have other names too."""

    @abstractmethod
    def _make_directory(self, save: SaveId) -> None:
        """Make a step's directory, if the storage has directories."""

    # Common to all tiers.

    def _write(self, save: SaveId, file: str, shards: Sequence[tuple[ShardRecord, memoryview]]) -> list[ShardPlace]:
        """Writes shards into a file. May be repeated until the step is committed."""
        directory = directory_name(save)
        if self._exists(f"{directory}/{NAME}"):
            where = f"{self.where}/{directory}"
            raise CheckpointError(f"{where}: step {save.step} is committed there already; it is never written again")
        places = node_places(file, [record for record, _ in shards])
        self._put_shards(save, file, [(place.offset, data) for place, (_, data) in zip(places, shards, strict=True)])
        return places

    def _superfluous(
        self, names: Collection[str], keep: int, complete: Collection[SaveId] | None, *, left: bool, lasting: Lasting
    ) -> list[CatalogEntry]:
        """The entries that `retain` removes, of the directories with these names.

        Reads each time the manifests of the steps that stay as the newest, because they justify the removals. A
        manifest never changes, so those of milestones, best and pinned steps are read once in a process's life.
        """
        lines = self.lines()
        while True:
            entries = list(entries_of(names, self.namespace, self._known_manifest, at_once=self._at_once))
            older = superfluous(entries, keep, complete, lines=lines, left=left)
            newest = {entry.name for entry in entries} - {entry.name for entry in older}
            if not (again := newest & self._known.keys()):
                break
            for name in again:  # a newer step has gone since they were read
                del self._known[name]
        going = superfluous(entries, keep, complete, lines=lines, left=left, lasting=lasting, pinned=pins_in(names))
        gone = {entry.name for entry in going}
        self._known = {
            entry.name: entry.manifest.without_shards() for entry in older if entry.manifest and entry.name not in gone
        }
        return going

    def _known_manifest(self, directory: str) -> Manifest:
        return self._known.get(directory) or self._manifest(directory)

    @cached_property
    def _known(self) -> dict[str, Manifest]:
        """The manifests, without shards, of steps that the last `retain` has kept though they are not the newest."""
        return {}

    def _manifest(self, directory: str) -> Manifest:
        return parse_manifest(self._get(f"{directory}/{NAME}", MAX_RECORD_BYTES), partial=self.node_local)

    def _reason(self, directory: str) -> str:
        try:
            return parse_reason(self._get(f"{directory}/{REASON}", MAX_RECORD_BYTES))
        except (FileNotFoundError, NotADirectoryError, CorruptError):
            return parse_reason(b"")


def pins_in(names: Iterable[str]) -> set[str]:
    """The names of the pinned steps' directories, among the names of all directories."""
    return {name.removeprefix(_PIN) for name in names if name.startswith(_PIN)}


def node_places(file: str, records: Sequence[ShardRecord]) -> list[ShardPlace]:
    """The places of a node's shards in its file: one after another, each at a multiple of SHARD_ALIGN_BYTES."""
    places, offset = [], 0
    for record in records:
        places.append(ShardPlace(rank=record.rank, file=file, offset=offset, record=record))
        offset += padded(record.nbytes)
    return places


def padded(nbytes: int) -> int:
    """The bytes that a shard takes in its node's file if another shard follows."""
    return -(-nbytes // SHARD_ALIGN_BYTES) * SHARD_ALIGN_BYTES
