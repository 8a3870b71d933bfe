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
from collections.abc import Collection, Sequence
from pathlib import Path

from ckpt.errors import ConfigError, CorruptError, NamespaceError
from ckpt.format.atomic_files import durable_write, open_regular, read_regular, sync_directory
from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.direct_io import DirectFile
from ckpt.tiers.lustre import on_lustre, set_stripe
from ckpt.tiers.mark import MARK, Mark, check_mark, new_mark, parse_mark
from ckpt.tiers.quarantine import quarantine
from ckpt.tiers.retention import superfluous
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Removed, Tier

_SQUASHED = 65534  # whom NFS takes root for
_TRASH = ".trash-"

log = logging.getLogger(__name__)


class SharedTier(Tier):
    """One namespace's folder in a shared directory; see `ckpt.tiers.tier.Tier` for the contract."""

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

    def begin(self, save: SaveId) -> None:
        """Makes the step's directory; on Lustre with the layout that its files inherit."""
        self._make_directory(save)
        if self._stripe_count is not None and on_lustre(directory := self._directory(save)):
            set_stripe(directory, self._stripe_count)

    def read(self, save: SaveId, place: ShardPlace, start: int, into: memoryview) -> None:
        """Reads without a map: a disk that fails is an error here, and would be a SIGBUS there."""
        read_file(self.data_path(save, place.file), place.offset + start, into)

    def data_path(self, save: SaveId, file: str) -> Path:
        """Where a file that the save's manifest names lies."""
        return self._directory(save) / file

    def quarantine(self, name: str, reason: str) -> str:
        """One atomic rename."""
        return str(quarantine(self.folder, name, reason))

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

    def _get(self, path: str, max_bytes: int) -> bytes:
        file = self.folder / path
        if file.parent != self.folder and file.parent.is_symlink():
            raise CorruptError(f"{file.parent}: is a symbolic link")
        try:
            return read_regular(file, max_bytes)
        except NotADirectoryError:
            raise CorruptError(f"{file.parent}: is no directory") from None

    def _put(self, path: str, data: bytes, *, sync: bool = True) -> None:
        durable_write(self.folder / path, data, sync=sync)

    def _put_shards(self, save: SaveId, file: str, pieces: Sequence[tuple[int, memoryview]]) -> None:
        """Through a temporary name; a rank's file has one for each writer, as several nodes may write it."""
        self._make_directory(save)
        directory = self._directory(save)
        writer = f".{secrets.token_hex(4)}" if file.startswith("rank-") else ""
        temporary = directory / f".{file}{writer}.tmp"
        try:
            output = DirectFile(temporary, self._throttle.take)
            try:
                for offset, data in pieces:
                    output.write(offset, data)
                output.finish()
            finally:
                output.close()
            os.replace(temporary, directory / file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(directory)
        sync_directory(self.folder)

    def _exists(self, path: str) -> bool:
        return (self.folder / path).exists()

    def _files(self, directory: str) -> list[str]:
        try:
            return os.listdir(self.folder / directory)
        except FileNotFoundError:
            return []

    def _directories(self) -> list[str]:
        return self._files("")

    def _make_directory(self, save: SaveId) -> None:
        """Raises CorruptError for a link that stands in its place."""
        directory = self._directory(save)
        directory.mkdir(mode=0o700, exist_ok=True)
        if directory.is_symlink():
            raise CorruptError(f"{directory}: is a symbolic link, expected our own directory; remove it")

    def _directory(self, save: SaveId) -> Path:
        return self.folder / directory_name(save)


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
