"""The manifest of one committed step in a lower tier: every shard, and where its bytes lie.

It is written last, so a directory without one is no checkpoint. It is read as if a stranger had written it: bounded in
size, checksummed, every field checked, and the files it names can only be node files beside it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpt.errors import CorruptError
from ckpt.record.files import durable_write
from ckpt.record.shard import FORMAT, SaveId, ShardRecord, seal_json, unseal_json

NAME = "manifest.json"
MAX_BYTES = 1 << 30
_FILE = re.compile(r"node-[0-9]{5}\.data")


@dataclass(frozen=True, kw_only=True)
class ShardPlace:
    """A shard, and where in its step's directory it lies."""

    rank: int
    file: str  # name of a node file beside the manifest
    offset: int  # of the shard's first byte in that file
    record: ShardRecord

    def to_json(self) -> dict[str, Any]:
        return {"rank": self.rank, "file": self.file, "offset": self.offset, "record": self.record.to_json()}

    @classmethod
    def from_json(cls, value: Any) -> ShardPlace:
        """Raises CorruptError when a field is missing or malformed, or the file is not a plain node file name."""
        try:
            place = cls(
                rank=value["rank"],
                file=value["file"],
                offset=value["offset"],
                record=ShardRecord.from_json(value["record"]),
            )
        except (KeyError, TypeError) as error:
            raise CorruptError(f"manifest: missing or malformed field {error}") from None
        if not isinstance(place.file, str) or not _FILE.fullmatch(place.file):
            raise CorruptError(f"manifest: file {place.file!r:.100}, expected node-NNNNN.data")
        if type(place.offset) is not int or not 0 <= place.offset < 1 << 62 or place.rank != place.record.rank:
            raise CorruptError(
                f"manifest: rank {place.rank!r:.20} at offset {place.offset!r:.20} does not fit its record"
            )
        return place


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All shards of one save, by rank; or, when `partial`, those of one node in its own tier."""

    save: SaveId
    namespace: str
    world_size: int
    created_s: float  # CLOCK_REALTIME of the commit
    shards: tuple[ShardPlace, ...]  # in order of rank: exactly one for each rank, or (partial) at most one
    partial: bool = False

    @property
    def nbytes(self) -> int:
        """Of all shards together."""
        return sum(place.record.layout.nbytes for place in self.shards)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT, "namespace": self.namespace, **self.save.to_json(), "world_size": self.world_size,
            "created": self.created_s, "nbytes": self.nbytes, **({"partial": True} if self.partial else {}),
            "shards": [place.to_json() for place in self.shards],
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Any) -> Manifest:
        """Raises CorruptError unless the shards are one of each rank (partial: of some), all of this save."""
        try:
            if value["format"] != FORMAT:
                raise CorruptError(f"manifest: format {value['format']!r:.20}, expected {FORMAT}")
            manifest = cls(
                save=SaveId.from_json(value),
                namespace=str(value["namespace"]),
                world_size=value["world_size"],
                created_s=float(value["created"]),
                shards=tuple(map(ShardPlace.from_json, value["shards"])),
                partial=value.get("partial", False) is True,
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise CorruptError(f"manifest: missing or malformed field: {error}") from None
        _check_shards(manifest)
        return manifest


def new_manifest(
    save: SaveId, world_size: int, created_s: float, shards: Sequence[ShardPlace], *, partial: bool = False
) -> Manifest:
    """A manifest over the shards that the nodes have written (partial: one node).

    Raises:
        CorruptError: the shards are not exactly one of each rank (partial: of some ranks), all of this save.
    """
    ordered = tuple(sorted(shards, key=lambda place: place.rank))
    namespace = ordered[0].record.namespace if ordered else ""
    manifest = Manifest(
        save=save, namespace=namespace, world_size=world_size, created_s=created_s, shards=ordered, partial=partial
    )
    _check_shards(manifest)
    return manifest


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Commits a step: the node files must be durable before."""
    durable_write(directory / NAME, seal_json(manifest.to_json()))


def read_manifest(directory: Path, *, partial: bool = False) -> Manifest:
    """Raises CorruptError for a damaged or hostile manifest or one of the other kind, OSError for none to read."""
    descriptor = open_regular(directory / NAME)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > MAX_BYTES:
            raise CorruptError(f"manifest: {size} bytes, expected at most {MAX_BYTES}")
        return parse_manifest(file.read(size), partial=partial)


def parse_manifest(data: bytes, *, partial: bool = False) -> Manifest:
    """The manifest in the bytes of its file; raises CorruptError for a damaged or hostile one, or of the other kind."""
    manifest = Manifest.from_json(unseal_json(data))
    if manifest.partial != partial:
        kinds = ("all nodes", "one node") if partial else ("one node", "all nodes")
        raise CorruptError(f"manifest: lists the shards of {kinds[0]}, expected {kinds[1]}")
    return manifest


def open_regular(path: Path) -> int:
    """A read-only descriptor; raises CorruptError for anything but a regular file (a symlink, a pipe, a device)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_symlink():
            raise CorruptError(f"{path}: is a symbolic link, expected a regular file") from None
        raise error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptError(f"{path}: is not a regular file")
    return descriptor


def _check_shards(manifest: Manifest) -> None:
    ranks = [place.rank for place in manifest.shards]
    world_size, partial = manifest.world_size, manifest.partial
    if type(world_size) is not int or world_size < 1 or (not partial and ranks != list(range(world_size))):
        raise CorruptError(
            f"manifest: {len(ranks)} shards, expected one of each rank 0 to world size {world_size!r:.20}"
        )
    if partial and (not ranks or ranks != sorted(set(ranks)) or ranks[-1] >= world_size):
        raise CorruptError(f"manifest: ranks {ranks!r:.60}, expected distinct ranks of {world_size}, in order")
    for place in manifest.shards:
        record = place.record
        if (record.save, record.world_size, record.namespace) != (
            manifest.save,
            world_size,
            manifest.namespace,
        ):
            raise CorruptError(f"manifest: the record of rank {place.rank} is of another save")
