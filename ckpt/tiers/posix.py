"""The shared tier: a directory that all nodes share (Lustre, NFS, a laptop's disk).

<path>/<namespace>/holdfast.json                                     the mark: namespace and user
<path>/<namespace>/owner.json                                        the claim of the live run
<path>/<namespace>/step-<step>.a<attempt>.<run tag>/node-NNNNN.data   one node's shards, one after another
<path>/<namespace>/step-<step>.a<attempt>.<run tag>/manifest.json     written last: the commit
<path>/<namespace>/line-<line>/line.json                              a line that begins after an older step: a rollback
<path>/<namespace>/pin-<step's directory>/pin.json                    a pin: the step is never removed
<path>/<namespace>/lasting.json                                      what stays besides the newest steps
<path>/<namespace>/.trash-*                                          steps that are being removed
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from ckpt.errors import CheckpointError, ConfigError, CorruptError, NamespaceError
from ckpt.format.atomic_files import open_regular, read_regular
from ckpt.format.lasting import NOTHING_ELSE, Lasting
from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.claim import Claim
from ckpt.tiers.direct_io import DirectFile
from ckpt.tiers.lustre import on_lustre, set_stripe
from ckpt.tiers.mark import MARK, MAX_MARK_BYTES, DamagedMark, Mark, check_mark, new_mark, parse_mark
from ckpt.tiers.own_folder import own_folder
from ckpt.tiers.quarantine import REASON, quarantined_name, reason_json
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Removed, Tier, pins_in
from holdfast.base.files import durable_write, sync_directory

_TRASH = ".trash-"

log = logging.getLogger(__name__)


class SharedTier(Tier):
    """One namespace's folder in a shared directory; see `ckpt.tiers.tier.Tier` for the contract."""

    kind = "shared"
    node: str | None = None  # the node, in the node-local tier

    def __init__(
        self, path: Path | str, namespace: str, *, stripe_count: int | None = None, throttle: Throttle | None = None
    ) -> None:
        """
        Args:
            stripe_count: on Lustre, number of storage targets for a node's file; -1: all, None: the default layout.
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
        """Make the namespace's folder with its mark, or check the mark. Returns the time at which it was made."""
        check_shared(self.path, self.namespace)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with own_folder(self.folder) as held:
            mark = _own_mark(self.folder, self.namespace) if (self.folder / MARK).exists() else None
            if mark is None:
                durable_write(held / MARK, new_mark(self.namespace, node=self.node))
                mark = read_mark(self.folder)
        return mark.created_s

    def check(self) -> None:
        """Check the folder's owner and the mark."""
        if self.folder.is_dir():
            with own_folder(self.folder):
                pass
        if (self.folder / MARK).exists():
            _own_mark(self.folder, self.namespace)

    def begin(self, save: SaveId) -> None:
        """Make the step's directory; on Lustre, with the layout for its files."""
        self._make_directory(save)
        if self._stripe_count is not None and on_lustre(directory := self._directory(save)):
            set_stripe(directory, self._stripe_count)

    def read(self, save: SaveId, place: ShardPlace, start: int, into: memoryview) -> None:
        """Read with pread(). With a mapping, an error of the disk would be a SIGBUS instead of an OSError."""
        read_file(self.data_path(save, place.file), place.offset + start, into)

    def data_path(self, save: SaveId, file: str) -> Path:
        """The path of a file that the save's manifest names."""
        return self._directory(save) / file

    def quarantine(self, name: str, reason: str) -> str:
        """Rename the directory atomically, after the reason is in it."""
        target = quarantined_name(name, self._directories())
        with own_folder(self.folder) as held:
            durable_write(held / name / REASON, reason_json(reason))
            os.rename(held / name, held / target)
            sync_directory(held)
        return str(self.folder / target)

    def retain(
        self,
        keep: int,
        complete: Collection[SaveId] | None = None,
        removed: Removed = lambda name: None,
        *,
        left: bool = False,
        lasting: Lasting = NOTHING_ELSE,
    ) -> list[str]:
        """Remove superfluous steps. Each is first renamed, so that no reader finds it half deleted."""
        going = self._superfluous(self._directories(), keep, complete, left=left, lasting=lasting)
        names = [entry.name for entry in going]
        back = self._remove(names, removed)
        return [name for name in names if name not in back]

    def _remove(self, names: Collection[str], removed: Removed) -> set[str]:
        """Removes steps, and those that a killed process has not removed to the end.

        A step that was pinned meanwhile gets its name back: a pin is made before its step is looked at, and is looked
        for after the rename. Returns the names of these steps.
        """
        with own_folder(self.folder) as held:
            for name in names:
                os.replace(held / name, held / f"{_TRASH}{name}")
            pinned = pins_in(os.listdir(held))
            for trash in held.glob(f"{_TRASH}*"):
                if (name := trash.name.removeprefix(_TRASH)) in pinned and not (held / name).exists():
                    os.rename(trash, held / name)
                elif trash.is_symlink():  # Holdfast makes no links, so the link's target must not be touched
                    log.warning("%s: was a symbolic link; removed, not what it led to", self.folder / trash.name)
                    trash.unlink()
                else:
                    shutil.rmtree(trash)
                    removed(name)
            return pinned

    def _get(self, path: str, max_bytes: int) -> bytes:
        file = self.folder / path
        if file.parent != self.folder and file.parent.is_symlink():
            raise CorruptError(f"{file.parent}: is a symbolic link")
        try:
            return read_regular(file, max_bytes)
        except NotADirectoryError:
            raise CorruptError(f"{file.parent}: is no directory") from None

    def _put(self, path: str, data: bytes, *, sync: bool = True) -> None:
        with own_folder(self.folder) as held:
            durable_write(held / path, data, sync=sync)

    def _put_shards(self, save: SaveId, file: str, pieces: Sequence[tuple[int, memoryview]]) -> None:
        """Writes to a temporary file and renames it. Each writer of a rank's file has its own temporary file, because
        several nodes may write the same rank."""
        self._make_directory(save)
        writer = f".{secrets.token_hex(4)}" if file.startswith("rank-") else ""
        with own_folder(self.folder) as held:
            directory = held / directory_name(save)
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
            sync_directory(held)

    def _exists(self, path: str) -> bool:
        return (self.folder / path).exists()

    def _directories(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def _make_directory(self, save: SaveId) -> None:
        """Makes a step's directory. Raises CorruptError if there is a symbolic link of that name."""
        with own_folder(self.folder) as held:
            directory = held / directory_name(save)
            directory.mkdir(mode=0o700, exist_ok=True)
            if directory.is_symlink():
                where = self._directory(save)
                raise CorruptError(f"{where}: is a symbolic link, expected our own directory; remove it")

    def _make_record(self, name: str) -> None:
        with own_folder(self.folder) as held:
            (held / name).mkdir(mode=0o700, exist_ok=True)
            sync_directory(held)

    def _remove_record(self, name: str) -> None:
        self._remove([name], lambda name: None)

    def _directory(self, save: SaveId) -> Path:
        return self.folder / directory_name(save)


def read_file(path: Path, start: int, into: memoryview) -> None:
    """Fill memory with a regular file's bytes from `start` on.

    Raises:
        CorruptError: the file is too short.
        OSError: the file cannot be read.
    """
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


def check_shared(path: Path | str, namespace: str) -> Claim | None:
    """Check that `<path>/<namespace>` is, or can become, the folder of this namespace. Writes nothing.

    Returns:
        The claim of the run that has the namespace; it may have ended without a release. None if no claim can be read.

    Raises:
        NamespaceError: the folder belongs to another namespace or user, or has other files.
        ConfigError: the folder cannot be made or written.
    """
    path = Path(path)
    folder = path / namespace
    if (path / MARK).exists():
        raise NamespaceError(
            f"{path}: is itself the folder of namespace {read_mark(path).namespace!r:.100}; give its parent"
        )
    names = []
    if folder.is_dir():
        with own_folder(folder):
            pass
        names = os.listdir(folder)  # list before the check for the mark, because another agent may be making both
    if (folder / MARK).exists():
        _own_mark(folder, namespace)
    elif any(not name.startswith(".") for name in names):
        raise NamespaceError(f"{folder}: holds other files and no {MARK}; choose another path or namespace")
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not nearest.is_dir():
        raise ConfigError(f"{nearest}: is a file, expected a directory; choose another checkpoint path")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{nearest}: is not writable for uid {os.getuid()}; choose another checkpoint path")
    try:
        claim = SharedTier(path, namespace).read_claim()
    except (CheckpointError, OSError):
        return None  # the agents say what is wrong with it
    return None if claim is None or claim.released else claim


def _own_mark(folder: Path, namespace: str) -> Mark | None:
    """The mark of this user's folder; None if it is damaged. Raises NamespaceError if it is of another namespace."""
    try:
        mark = read_mark(folder)
    except DamagedMark as error:
        log.warning("%s", error)
        return None
    check_mark(mark, str(folder), namespace)
    return mark


def read_mark(folder: Path) -> Mark:
    """Read the mark of a namespace's folder. Raises NamespaceError if it cannot be read, DamagedMark if damaged."""
    try:
        data = read_regular(folder / MARK, MAX_MARK_BYTES)
    except (CorruptError, OSError) as error:
        raise NamespaceError(f"{folder / MARK}: cannot be read ({error}); restore or remove it") from None
    return parse_mark(data, str(folder / MARK))
