"""The rows of a manifest, one for each shard. Parts that ranks have in common are stored once, and a rank's record is
parsed on access; `ckpt.format.chunk_table` checks what ranks have in common once.

Thousands of ranks have the same tensors with other offsets. So a layout is divided into its table (key, dtype, shape,
sizes, start, bytes and spread of every chunk), its tree of values and its offsets. Each is stored once for all ranks
that have the same. Offsets are runs of (number of chunks, offsets in units of the chunk's sizes). FSDP gives one run
for each rank.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from ckpt.errors import CorruptError
from ckpt.format.atomic_files import dump_json
from ckpt.format.checksums import BLOCK_BYTES, block_count
from ckpt.format.chunk_table import Chunks, ChunkTable
from ckpt.format.layout import Chunk, Layout
from ckpt.format.parsing import checked_depth, parsing
from ckpt.format.shard_record import RECORD_FORMAT, SaveId, ShardRecord

_CHECKSUM_DIGITS = 32


class ManifestRow(NamedTuple):
    """One shard: its location, and the parts of its record."""

    rank: int
    file: int  # index of the file's name
    offset: int
    nbytes: int
    flush: int  # 1 or 0
    table: int  # this and the next two: indices of parts
    tree: int
    offsets: int
    blocks: str  # the checksums, concatenated


class Packer:
    """Divides records into rows and common parts."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.files: list[str] = []
        self._known: dict[bytes, int] = {}
        self._tables: dict[int, tuple[ChunkTable, int]] = {}  # by id: the table, which keeps its id, and its index
        self._file_index: dict[str, int] = {}

    def row(self, record: ShardRecord, file: str, offset: int) -> ManifestRow:
        """The row of one shard. Parts and file names that are new are added to `parts` and `files`."""
        table, runs = self._table(record.layout)
        parts = [table, *(self._part(part, dump_json(part)) for part in (record.layout.tree, runs))]
        return ManifestRow(
            rank=record.rank, file=self._file(file), offset=offset, nbytes=record.nbytes, flush=int(record.flush),
            table=parts[0], tree=parts[1], offsets=parts[2], blocks="".join(record.blocks),
        )  # fmt: skip

    def add(self, packed: Packed) -> list[ManifestRow]:
        """Adds another packer's rows. The cost depends on the number of common parts, not of chunks."""
        files = list(map(self._file, packed.files))
        try:
            parts = [self._part(part, marshal.dumps(part, 2)) for part in packed.parts]  # six times as fast as JSON
        except ValueError as error:
            raise CorruptError(f"manifest: {error}") from None  # nested too deeply
        return [
            row._replace(file=files[row.file], table=parts[row.table], tree=parts[row.tree], offsets=parts[row.offsets])
            for row in packed.rows
        ]

    def _table(self, layout: Layout) -> tuple[int, list[list[Any]]]:
        """The index of a layout's table, and its offsets. A table that comes from a manifest is looked at once."""
        chunks = layout.chunks
        if isinstance(chunks, Chunks):
            _, index = self._tables.get(id(chunks.table), (None, -1))
            if index < 0:
                index = self._part(chunks.table.part, dump_json(chunks.table.part))
                self._tables[id(chunks.table)] = chunks.table, index
            return index, chunks.runs()
        rows = [[c.key, c.dtype, list(c.shape), list(c.sizes), c.start, c.nbytes, *c.to_list()[7:]] for c in chunks]
        table = [[spread.to_json() for spread in layout.spreads], rows]
        return self._part(table, dump_json(table)), _runs(chunks)

    def _file(self, name: str) -> int:
        index = self._file_index.setdefault(name, len(self.files))
        if index == len(self.files):
            self.files.append(name)
        return index

    def _part(self, value: Any, key: bytes) -> int:
        """The index of a part. `key` is equal for equal JSON; True and 1 have different keys."""
        index = self._known.setdefault(key, len(self.parts))
        if index == len(self.parts):
            self.parts.append(value)
        return index


@dataclass(frozen=True, kw_only=True)
class Packed:
    """All rows of a manifest, and the parts that they have in common."""

    files: Sequence[str]
    parts: Sequence[Any]
    rows: Sequence[ManifestRow]
    _tables: dict[int, ChunkTable] = field(default_factory=dict, init=False, repr=False, compare=False)
    _trees: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {"files": self.files, "parts": self.parts, "rows": list(map(list, self.rows))}

    @classmethod
    @parsing("manifest")
    def from_json(cls, value: Any) -> Packed:
        """Raises CorruptError unless every row is well formed. The contents of the parts are checked by `record`."""
        packed = cls(files=value["files"], parts=value["parts"], rows=list(map(_row, value["rows"])))
        if not isinstance(packed.files, list) or not isinstance(packed.parts, list):
            raise CorruptError("manifest: files or parts are not lists")
        for row in packed.rows:
            indices = (row.table, row.tree, row.offsets)
            if row.file >= len(packed.files) or any(index >= len(packed.parts) for index in indices):
                raise CorruptError(f"manifest: rank {row.rank} names a file or part that does not exist")
        return packed

    def record(
        self, row: ManifestRow, save: SaveId, namespace: str, world_size: int, metrics: Mapping[str, float]
    ) -> ShardRecord:
        """The record of one shard. Raises CorruptError if its parts do not match."""
        blocks = row.blocks
        with parsing(f"manifest: the layout of rank {row.rank}"):
            if (table := self._tables.get(row.table)) is None:
                table = self._tables[row.table] = ChunkTable(self.parts[row.table])
            if row.tree not in self._trees:
                self._trees[row.tree] = checked_depth(self.parts[row.tree])
            layout = table.layout_at(self.parts[row.offsets], self._trees[row.tree], row.nbytes)
        return ShardRecord.from_json(
            {
                "format": RECORD_FORMAT, **save.to_json(), "namespace": namespace, "rank": row.rank,
                "world_size": world_size, "flush": row.flush == 1, "block_bytes": BLOCK_BYTES,
                "blocks": [blocks[i : i + _CHECKSUM_DIGITS] for i in range(0, len(blocks), _CHECKSUM_DIGITS)],
                "layout": layout, "metrics": metrics,
            }
        )  # fmt: skip


def _row(value: list[Any]) -> ManifestRow:
    row = ManifestRow(*value)
    numbers = row[:-1]
    if any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers) or type(row.blocks) is not str:
        raise CorruptError(f"manifest: malformed row {value!r:.100}")
    if len(row.blocks) != _CHECKSUM_DIGITS * block_count(row.nbytes):
        raise CorruptError(f"manifest: rank {row.rank}: {len(row.blocks)} digits of checksums for {row.nbytes} bytes")
    return row


def _runs(chunks: Iterable[Chunk]) -> list[list[Any]]:
    """Offsets as rows [number of chunks, offsets, 1 if the offsets are in units of the chunk's sizes]."""
    return [[len(list(group)), list(numbers), unit] for (numbers, unit), group in groupby(map(_units, chunks))]


def _units(chunk: Chunk) -> tuple[tuple[int, ...], int]:
    pairs = list(zip(chunk.offsets, chunk.sizes, strict=True))
    if any(offset % size if size else offset for offset, size in pairs):
        return chunk.offsets, 0
    return tuple(offset // size if size else 0 for offset, size in pairs), 1
