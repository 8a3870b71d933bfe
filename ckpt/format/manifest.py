"""The manifest of one committed step in a lower tier: every shard and the location of its bytes.

It is written last, so a directory without a manifest is not a checkpoint. Its content is not trusted: its size is
limited, it has a checksum, every field is checked, and it can only name node or rank files in its own directory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ckpt.errors import CorruptError, FormatError
from ckpt.format.lasting import parse_metrics
from ckpt.format.manifest_rows import Packed, Packer
from ckpt.format.parsing import parsing
from ckpt.format.shard_record import SaveId, ShardRecord, unseal_json

MANIFEST_FORMAT = 2  # that of Holdfast 0.2.0 too; a release reads every format since then
SINCE = "0.2.0"  # the first release that reads this format, for the messages of older ones
NAME = "manifest.json"
_FILE = re.compile(r"(?:node|rank)-[0-9]{5}\.data")


@dataclass(frozen=True, kw_only=True)
class ShardPlace:
    """A shard and its location in its step's directory."""

    rank: int
    file: str  # name of a node's or rank's file beside the manifest
    offset: int  # of the shard's first byte in that file
    record: ShardRecord


class Shards(Sequence[ShardPlace]):
    """The shards of a manifest, in order of rank; each is parsed from its row on access.

    Access raises CorruptError if the layout is malformed.
    """

    def __init__(
        self, packed: Packed, save: SaveId, namespace: str, world_size: int, metrics: Mapping[str, float]
    ) -> None:
        self.packed = packed
        self.namespace = namespace
        self.metrics = dict(metrics)
        self._of = (save, namespace, world_size, self.metrics)

    def __getitem__(self, index: int) -> ShardPlace:  # type: ignore[override]  # slices are not needed
        row = self.packed.rows[index]
        record = self.packed.record(row, *self._of)
        return ShardPlace(rank=row.rank, file=self.packed.files[row.file], offset=row.offset, record=record)

    def __len__(self) -> int:
        return len(self.packed.rows)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """All shards of one save, by rank. A `partial` one has the shards of one node, in that node's own tier."""

    save: SaveId
    namespace: str
    world_size: int
    created_s: float  # CLOCK_REALTIME of the commit
    shards: Shards  # exactly one for each rank, or at most one if partial
    partial: bool = False

    @property
    def metrics(self) -> Mapping[str, float]:
        """What the script has given for the save: finite numbers by name."""
        return self.shards.metrics

    @property
    def nbytes(self) -> int:
        """The number of bytes of all shards together."""
        return sum(row.nbytes for row in self.shards.packed.rows)

    def without_shards(self) -> Manifest:
        """What retention needs of it, in little memory."""
        empty = Packed(files=[], parts=[], rows=[])
        return replace(self, shards=Shards(empty, self.save, self.namespace, self.world_size, self.metrics))

    def to_json(self) -> dict[str, Any]:
        return {
            "format": MANIFEST_FORMAT, "since": SINCE, "namespace": self.namespace, **self.save.to_json(),
            "world_size": self.world_size, "created": self.created_s, "nbytes": self.nbytes,
            **({"partial": True} if self.partial else {}),
            **({"metrics": self.shards.metrics} if self.shards.metrics else {}),
            **self.shards.packed.to_json(),
        }  # fmt: skip

    @classmethod
    @parsing("manifest")
    def from_json(cls, value: Any) -> Manifest:
        """Reads a manifest with one shard for each rank (partial: for some), in files beside it.

        Raises:
            CorruptError: it is malformed.
            FormatError: another release has written it, in a format that this one does not know.
        """
        try:
            if value["format"] != MANIFEST_FORMAT:
                since = value.get("since")
                by = f"{since:.20} or newer" if isinstance(since, str) and since.isprintable() else "of another version"
                raise FormatError(
                    f"written by Holdfast {by}, in format {value['format']!r:.20}; "
                    f"this release reads format {MANIFEST_FORMAT}"
                )
            save, namespace, world_size = SaveId.from_json(value), str(value["namespace"]), value["world_size"]
            packed, partial = Packed.from_json(value), value.get("partial", False) is True
            created_s = float(value["created"])
            if not math.isfinite(created_s):
                raise ValueError(f"created is {created_s}")
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise CorruptError(f"manifest: missing or malformed field: {error}") from None
        for file in packed.files:
            _check_file(file)
        _check_ranks([row.rank for row in packed.rows], world_size, partial)
        return cls(
            save=save, namespace=namespace, world_size=world_size, created_s=created_s, partial=partial,
            shards=Shards(packed, save, namespace, world_size, parse_metrics(value.get("metrics", {}))),
        )  # fmt: skip


def new_manifest(
    save: SaveId, world_size: int, created_s: float, shards: Sequence[ShardPlace], *, partial: bool = False
) -> Manifest:
    """The manifest of the shards that all nodes have written (partial: one node).

    Raises:
        CorruptError: there is not exactly one shard of this save for each rank (partial: for some ranks).
    """
    found = shards if isinstance(shards, Shards) else _shards_of(save, world_size, shards)
    _check_ranks([row.rank for row in found.packed.rows], world_size, partial)
    return Manifest(
        save=save, namespace=found.namespace, world_size=world_size, created_s=created_s, shards=found, partial=partial
    )


def pack(save: SaveId, places: Sequence[ShardPlace]) -> dict[str, Any]:
    """What a node reports of its written shards, for `merge`. Raises CorruptError for a shard of another save."""
    for place in places:
        if place.record.save != save:
            raise CorruptError(f"manifest: the record of rank {place.rank} is of another save")
    return {**_pack(places).to_json(), "metrics": _metrics(places)}


def merge(save: SaveId, namespace: str, world_size: int, packs: Iterable[Any]) -> Shards:
    """The shards of all nodes, by rank, from the packs of all nodes. Raises CorruptError."""
    packer, packs = Packer(), list(packs)
    rows = [row for value in packs for row in packer.add(Packed.from_json(value))]
    metrics = parse_metrics(packs[0]["metrics"]) if packs else {}
    for file in packer.files:
        _check_file(file)
    rows.sort(key=lambda row: row.rank)
    return Shards(Packed(files=packer.files, parts=packer.parts, rows=rows), save, namespace, world_size, metrics)


def parse_manifest(data: bytes, *, partial: bool = False) -> Manifest:
    """The manifest in the bytes of its file.

    Raises:
        CorruptError: it is damaged, hostile, or of the wrong kind.
        FormatError: it is of a format that this release does not know.
    """
    manifest = Manifest.from_json(unseal_json(data))
    if manifest.partial != partial:
        kinds = ("all nodes", "one node") if partial else ("one node", "all nodes")
        raise CorruptError(f"manifest: lists the shards of {kinds[0]}, expected {kinds[1]}")
    return manifest


def _shards_of(save: SaveId, world_size: int, places: Sequence[ShardPlace]) -> Shards:
    ordered = sorted(places, key=lambda place: place.rank)
    namespace = ordered[0].record.namespace if ordered else ""
    for place in ordered:
        record = place.record
        if (record.save, record.world_size, record.namespace) != (save, world_size, namespace):
            raise CorruptError(f"manifest: the record of rank {place.rank} is of another save")
    return Shards(_pack(ordered), save, namespace, world_size, _metrics(ordered))


def _metrics(places: Sequence[ShardPlace]) -> dict[str, float]:
    """Those of a save, which each of its records has."""
    return dict(places[0].record.metrics) if places else {}


def _pack(places: Sequence[ShardPlace]) -> Packed:
    packer = Packer()
    rows = [packer.row(place.record, place.file, place.offset) for place in places]
    return Packed(files=packer.files, parts=packer.parts, rows=rows)


def _check_file(name: Any) -> None:
    if not isinstance(name, str) or not _FILE.fullmatch(name):
        raise CorruptError(f"manifest: file {name!r:.100}, expected node-NNNNN.data or rank-NNNNN.data")


def _check_ranks(ranks: list[int], world_size: Any, partial: bool) -> None:
    whole = type(world_size) is int and len(ranks) == world_size and ranks == list(range(world_size))
    if type(world_size) is not int or world_size < 1 or not (partial or whole):
        raise CorruptError(
            f"manifest: {len(ranks)} shards, expected one of each rank 0 to world size {world_size!r:.20}"
        )
    if partial and (not ranks or ranks != sorted(set(ranks)) or ranks[-1] >= world_size):
        raise CorruptError(f"manifest: ranks {ranks!r:.60}, expected distinct ranks of {world_size}, in order")
