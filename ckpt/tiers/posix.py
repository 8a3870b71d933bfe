"""The shared tier: a directory that every node sees (Lustre, NFS, a laptop's disk).

<path>/<namespace>/holdfast.json                                     whose folder this is
<path>/<namespace>/owner.json                                        which live run writes here
<path>/<namespace>/step-<step>.a<attempt>.<run tag>/node-NNNNN.data   one node's shards, one after another
<path>/<namespace>/step-<step>.a<attempt>.<run tag>/manifest.json     written last: the commit
<path>/<namespace>/.trash-*                                          steps on their way out
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from ckpt.errors import CheckpointError, ConfigError, CorruptError, NamespaceError
from ckpt.format.atomic_files import durable_write, open_regular, read_regular, sync_directory
from ckpt.format.manifest import MAX_BYTES, NAME, Manifest, ShardPlace, new_manifest, read_manifest, write_manifest
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.catalog import CatalogEntry, committed, directory_name, list_steps, steps_since
from ckpt.tiers.claim import CLAIM, Claim, parse_claim
from ckpt.tiers.claim import MAX_BYTES as CLAIM_BYTES
from ckpt.tiers.direct_io import PAGE_BYTES, DirectFile
from ckpt.tiers.lustre import on_lustre, set_stripe
from ckpt.tiers.mark import MARK, Mark, check_mark, new_mark, parse_mark
from ckpt.tiers.quarantine import quarantine, quarantined
from ckpt.tiers.retention import superfluous
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Removed

SHARD_ALIGN_BYTES = PAGE_BYTES  # a shard can be mapped where it lies, and written past the page cache
_SQUASHED = 65534  # whom NFS takes root for
_TRASH = ".trash-"

log = logging.getLogger(__name__)


class SharedTier:
    """One namespace's folder in a shared directory; see `ckpt.tiers.tier.Tier` for the contract."""

    node_local = False
    node: str | None = None  # whose disk it is, where node-local

    def __init__(
        self, path: Path | str, namespace: str, *, stripe_count: int | None = None, throttle: Throttle | None = None
    ) -> None:
        """
        Args:
            path: the directory; made when it is missing.
            namespace: name of our folder in it.
            stripe_count: storage targets that a node's file is spread over, on Lustre; -1 is all, None the default.
            throttle: limits how fast this process writes.
        """
        self.path = Path(path)
        self.namespace = namespace
        self.folder = self.path / namespace
        self._stripe_count = stripe_count
        self._throttle = throttle or Throttle(None)

    @property
    def where(self) -> str:
        return str(self.folder)

    def prepare(self) -> float:
        """Makes the namespace's folder and marks it, or checks the mark; returns when it was made."""
        check_shared(self.path, self.namespace)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owner(self.folder)
        if not (self.folder / MARK).exists():
            durable_write(self.folder / MARK, new_mark(self.namespace, node=self.node))
        return read_mark(self.folder).created_s

    def check(self) -> None:
        """By who owns the folder, and by the mark."""
        if self.folder.is_dir():
            _check_owner(self.folder)
        if (self.folder / MARK).exists():
            check_mark(read_mark(self.folder), str(self.folder), self.namespace)

    def read_claim(self) -> Claim | None:
        """The claim beside the mark."""
        try:
            descriptor = open_regular(self.folder / CLAIM)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            return parse_claim(file.read(CLAIM_BYTES), str(self.folder / CLAIM))

    def write_claim(self, claim: Claim) -> None:
        """Through a temporary name; not synced: a claim that a crash takes along has outlived its run."""
        durable_write(self.folder / CLAIM, claim.to_bytes(), sync=False)

    def begin(self, save: SaveId) -> None:
        """Makes the step's directory; on Lustre with the layout that its files inherit."""
        directory = self._make_directory(save)
        if self._stripe_count is not None and on_lustre(directory):
            set_stripe(directory, self._stripe_count)

    def write_node(
        self, save: SaveId, node_rank: int, shards: Sequence[tuple[ShardRecord, memoryview]]
    ) -> list[ShardPlace]:
        """Writes `node-<rank>.data` through a temporary name; may be repeated until the step is committed."""
        file = f"node-{node_rank:05d}.data"
        return self._write(save, file, f".{file}.tmp", shards)

    def write_rank(self, save: SaveId, record: ShardRecord, data: memoryview) -> ShardPlace:
        """Writes `rank-<rank>.data` through a temporary name of its own."""
        file = f"rank-{record.rank:05d}.data"
        return self._write(save, file, f".{file}.{secrets.token_hex(4)}.tmp", [(record, data)])[0]

    def leave_note(self, save: SaveId, name: str, data: bytes) -> None:
        """One small file."""
        durable_write(self._make_directory(save) / name, data)

    def notes(self, save: SaveId) -> list[str]:
        """One listing."""
        try:
            return os.listdir(self._directory(save))
        except FileNotFoundError:
            return []

    def read_note(self, save: SaveId, name: str) -> bytes:
        """A link is refused."""
        return read_regular(self._directory(save) / name, MAX_BYTES)

    def has_since(self, step: int) -> bool:
        """One listing, and a look into the newer steps."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return False
        return any((self.folder / name / NAME).exists() for name in steps_since(names, step))

    def _write(
        self, save: SaveId, file: str, temporary_name: str, shards: Sequence[tuple[ShardRecord, memoryview]]
    ) -> list[ShardPlace]:
        directory = self._make_directory(save)
        if (directory / NAME).exists():
            raise CheckpointError(
                f"{directory}: step {save.step} is committed there already; it is never written again"
            )
        temporary = directory / temporary_name
        places = node_places(file, [record for record, _ in shards])
        try:
            output = DirectFile(temporary, self._throttle.take)
            try:
                for place, (_, data) in zip(places, shards, strict=True):
                    output.write(place.offset, data)
                output.finish()
            finally:
                output.close()
            os.replace(temporary, directory / file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(directory)
        sync_directory(self.folder)
        return places

    def commit(self, save: SaveId, world_size: int, places: Sequence[ShardPlace]) -> Manifest:
        """Writes the manifest: from here on the step is a checkpoint."""
        manifest = new_manifest(save, world_size, time.time(), places, partial=self.node_local)
        write_manifest(self._directory(save), manifest)
        return manifest

    def steps(self) -> list[SaveId]:
        """The committed steps, newest first; one with a damaged manifest is logged and left out."""
        return committed(self.catalog(), self.where)

    def catalog(self) -> Iterator[CatalogEntry]:
        """One listing, then one manifest after another."""
        return list_steps(self.folder, self.namespace, partial=self.node_local)

    def read_manifest(self, save: SaveId) -> Manifest:
        """The manifest of one save."""
        manifest = read_manifest(self._directory(save), partial=self.node_local)
        if manifest.save != save or manifest.namespace != self.namespace:
            raise CorruptError(f"{self._directory(save)}: manifest is of {manifest.save}, expected {save}")
        return manifest

    def read(self, save: SaveId, place: ShardPlace, start: int, into: memoryview) -> None:
        """Reads without a map: a disk that fails is an error here, and would be a SIGBUS there."""
        read_file(self.data_path(save, place.file), place.offset + start, into)

    def data_path(self, save: SaveId, file: str) -> Path:
        """Where a file that the save's manifest names lies."""
        return self._directory(save) / file

    def quarantine(self, name: str, reason: str) -> str:
        """One atomic rename."""
        return str(quarantine(self.folder, name, reason))

    def quarantined(self) -> list[tuple[str, str]]:
        return quarantined(self.folder)

    def retain(
        self, keep: int, running: SaveId | None, complete: Collection[SaveId] | None = None,
        removed: Removed = lambda name: None,
    ) -> list[str]:  # fmt: skip
        """Removes superfluous steps: renamed first, so that none is ever seen half deleted."""
        names = []
        for entry in superfluous(list(self.catalog()), keep, directory_name(running) if running else None, complete):
            os.replace(self.folder / entry.name, self.folder / f"{_TRASH}{entry.name}")
            names.append(entry.name)
        for trash in self.folder.glob(f"{_TRASH}*"):
            if trash.is_symlink():  # no directory of ours: where it leads is nobody's business here
                log.warning("%s: was a symbolic link; removed, what it led to is left alone", trash)
                trash.unlink()
            else:
                shutil.rmtree(trash)
                removed(trash.name.removeprefix(_TRASH))
        return names

    def _make_directory(self, save: SaveId) -> Path:
        """The step's directory, made if need be; raises CorruptError for a link that stands in its place."""
        directory = self._directory(save)
        directory.mkdir(mode=0o700, exist_ok=True)
        if directory.is_symlink():
            raise CorruptError(f"{directory}: is a symbolic link, expected our own directory; remove it")
        return directory

    def _directory(self, save: SaveId) -> Path:
        return self.folder / directory_name(save)


def node_places(file: str, records: Sequence[ShardRecord]) -> list[ShardPlace]:
    """Where the shards of a node lie in its file: one after another, each at a multiple of SHARD_ALIGN_BYTES."""
    places, offset = [], 0
    for record in records:
        places.append(ShardPlace(rank=record.rank, file=file, offset=offset, record=record))
        offset += -(-record.layout.nbytes // SHARD_ALIGN_BYTES) * SHARD_ALIGN_BYTES
    return places


def read_file(path: Path, start: int, into: memoryview) -> None:
    """Fills memory with a regular file's bytes; raises CorruptError when it ends before, OSError."""
    descriptor = open_regular(path)
    try:
        done = 0
        while done < len(into):
            count = os.preadv(descriptor, [into[done:]], start + done)
            if not count:
                raise CorruptError(f"{path}: got {start + done} bytes, expected at least {start + len(into)}")
            done += count
    finally:
        os.close(descriptor)


def check_shared(path: Path | str, namespace: str) -> None:
    """Looks whether `<path>/<namespace>` is, or may become, the folder of this namespace. Writes nothing.

    Raises:
        NamespaceError: it belongs to another namespace, another user, or holds other files.
        ConfigError: it cannot be made or written there.
    """
    path = Path(path)
    folder = path / namespace
    if (path / MARK).exists():
        raise NamespaceError(
            f"{path}: is itself the folder of namespace {read_mark(path).namespace!r:.100}; give its parent"
        )
    names = []
    if folder.is_dir():
        _check_owner(folder)
        names = os.listdir(folder)  # before the mark: another agent may just be making it
    if (folder / MARK).exists():
        check_mark(read_mark(folder), str(folder), namespace)
    elif any(not name.startswith(".") for name in names):
        raise NamespaceError(f"{folder}: holds other files and no {MARK}; choose another path or namespace")
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest}: is a file, expected a directory; choose another checkpoint path")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{nearest}: is not writable for uid {os.getuid()}; choose another checkpoint path")


def _check_owner(folder: Path) -> None:
    """Who may write above it can have made the folder, and its mark: the owner decides."""
    owner, user = folder.stat().st_uid, os.getuid()
    if owner != user and not (user == 0 and owner == _SQUASHED):
        raise NamespaceError(f"{folder}: belongs to uid {owner}, we are uid {user}; choose another path")


def read_mark(folder: Path) -> Mark:
    """What a namespace's folder says of itself; raises NamespaceError when it cannot be read."""
    try:
        data = (folder / MARK).read_bytes()
    except OSError as error:
        raise NamespaceError(f"{folder / MARK}: cannot be read ({error}); restore or remove it") from None
    return parse_mark(data, str(folder / MARK))
