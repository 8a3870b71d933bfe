"""The shared tier: a directory that every node sees (Lustre, NFS, a laptop's disk).

<path>/<namespace>/holdfast.json                                     whose folder this is
<path>/<namespace>/step-<step>.a<attempt>.<run tag>/node-NNNNN.data   one node's shards, one after another
<path>/<namespace>/step-<step>.a<attempt>.<run tag>/manifest.json     written last: the commit
<path>/<namespace>/.trash-*                                          steps on their way out
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import xxhash

from ckpt.errors import CheckpointError, ConfigError, CorruptError, NamespaceError
from ckpt.record.files import dump_json, durable_write, sync_directory
from ckpt.record.manifest import Manifest, ShardPlace, new_manifest, read_manifest, write_manifest
from ckpt.record.shard import FORMAT, SaveId, ShardRecord
from ckpt.tiers.catalog import Entry, list_steps
from ckpt.tiers.retention import superfluous

MARK = "holdfast.json"
SHARD_ALIGN_BYTES = 4096  # so that a shard can be mapped where it lies
_TRASH = ".trash-"
_WRITE_BYTES = 64 << 20

log = logging.getLogger(__name__)


class SharedTier:
    """One namespace's folder in a shared directory; see `ckpt.tiers.tier.Tier` for the contract."""

    def __init__(self, path: Path | str, namespace: str) -> None:
        self.path = Path(path)
        self.namespace = namespace
        self.folder = self.path / namespace

    def prepare(self) -> float:
        """Makes the namespace's folder and marks it, or checks the mark; returns when it was made."""
        check_shared(self.path, self.namespace)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (self.folder / MARK).exists():
            mark = {"format": FORMAT, "namespace": self.namespace, "uid": os.getuid(), "created": time.time()}
            durable_write(self.folder / MARK, dump_json(mark))
        created = read_mark(self.folder).get("created")
        return created if isinstance(created, float) else 0.0

    def write_node(
        self, save: SaveId, node_rank: int, shards: Sequence[tuple[ShardRecord, memoryview]]
    ) -> list[ShardPlace]:
        """Writes `node-<rank>.data` through a temporary name; may be repeated until the step is committed."""
        directory = self._directory(save)
        if (directory / "manifest.json").exists():
            raise CheckpointError(
                f"{directory}: step {save.step} is committed there already; it is never written again"
            )
        directory.mkdir(mode=0o700, exist_ok=True)
        file = f"node-{node_rank:05d}.data"
        temporary = directory / f".{file}.tmp"
        places: list[ShardPlace] = []
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                offset = 0
                for record, data in shards:
                    _write_at(descriptor, offset, data)
                    places.append(ShardPlace(rank=record.rank, file=file, offset=offset, record=record))
                    offset += -(-len(data) // SHARD_ALIGN_BYTES) * SHARD_ALIGN_BYTES
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, directory / file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(directory)
        sync_directory(self.folder)
        return places

    def commit(self, save: SaveId, world_size: int, places: Sequence[ShardPlace]) -> Manifest:
        """Writes the manifest: from here on the step is a checkpoint."""
        manifest = new_manifest(save, world_size, time.time(), places)
        write_manifest(self._directory(save), manifest)
        return manifest

    def steps(self) -> list[SaveId]:
        """The committed steps, newest first; one with a damaged manifest is logged and left out."""
        saves = []
        for entry in self.catalog():
            if entry.save:
                saves.append(entry.save)
            elif entry.damaged:
                log.warning("%s: step %d cannot be restored: %s", self.folder / entry.name, entry.step, entry.reason)
        return saves

    def catalog(self) -> list[Entry]:
        """Every step found, newest first, with the reason for each that cannot be restored."""
        return list_steps(self.folder, self.namespace)

    def read_manifest(self, save: SaveId) -> Manifest:
        """The manifest of one save."""
        manifest = read_manifest(self._directory(save))
        if manifest.save != save or manifest.namespace != self.namespace:
            raise CorruptError(f"{self._directory(save)}: manifest is of {manifest.save}, expected {save}")
        return manifest

    def data_path(self, save: SaveId, file: str) -> Path:
        """Where a file that the save's manifest names lies."""
        return self._directory(save) / file

    def retain(self, keep: int, running: SaveId | None) -> list[str]:
        """Removes superfluous steps: renamed first, so that none is ever seen half deleted."""
        names = []
        for entry in superfluous(self.catalog(), keep, directory_name(running) if running else None):
            os.replace(self.folder / entry.name, self.folder / f"{_TRASH}{entry.name}")
            names.append(entry.name)
        for trash in self.folder.glob(f"{_TRASH}*"):
            shutil.rmtree(trash)
        return names

    def _directory(self, save: SaveId) -> Path:
        return self.folder / directory_name(save)


def directory_name(save: SaveId) -> str:
    """One directory for each save: another run in the same namespace counts its attempts from 0 again."""
    return f"step-{save.step:010d}.a{save.attempt}.{run_tag(save.run_id)}"


def run_tag(run_id: str) -> str:
    """Eight hex digits that tell runs apart in directory names."""
    return xxhash.xxh32_hexdigest(run_id.encode())


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
            f"{path}: is itself the folder of namespace {read_mark(path).get('namespace')!r:.100}; give its parent"
        )
    if (folder / MARK).exists():
        mark = read_mark(folder)
        if mark.get("namespace") != namespace:
            raise NamespaceError(
                f"{folder}: belongs to namespace {mark.get('namespace')!r:.100}, not {namespace!r}; choose another path"
            )
        if mark.get("uid") != os.getuid():
            raise NamespaceError(
                f"{folder}: belongs to uid {mark.get('uid')!r:.20}, we are uid {os.getuid()}; choose another path"
            )
    elif folder.is_dir() and any(not name.startswith(".") for name in os.listdir(folder)):
        raise NamespaceError(f"{folder}: holds other files and no {MARK}; choose another path or namespace")
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest}: is a file, expected a directory; choose another checkpoint path")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{nearest}: is not writable for uid {os.getuid()}; choose another checkpoint path")


def read_mark(folder: Path) -> dict[str, object]:
    """What a namespace's folder says of itself; raises NamespaceError when it cannot be read."""
    try:
        mark = json.loads((folder / MARK).read_bytes()[:65536])
    except (OSError, ValueError, RecursionError) as error:
        raise NamespaceError(f"{folder / MARK}: cannot be read ({error}); restore or remove it") from None
    if not isinstance(mark, dict):
        raise NamespaceError(f"{folder / MARK}: is no JSON object; restore or remove it")
    return mark


def _write_at(descriptor: int, offset: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + _WRITE_BYTES], offset + done)
