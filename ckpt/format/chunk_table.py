"""The chunks of a manifest's shards. A table is checked once for all ranks that have it; a rank's chunks are made when
they are used.

So the time to check a manifest depends on its size, not on the number of ranks times the number of tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from ckpt.errors import CorruptError
from ckpt.format.layout import MAX_DIMS, MAX_NUMBER, Chunk, Layout
from ckpt.format.rank_grid import Spread

_MAX_LOOKS = 1 << 30  # sizes that all checks of one table look at; even runs are looked at once for all ranks

TableRun = tuple[int, tuple[int, ...], bool]  # end in the table, offsets, whether in units of the chunk's sizes


class ChunkTable:
    """The key, dtype, shape, sizes, start, bytes and spread of each chunk of a shard, without its offsets.

    Raises:
        CorruptError: it is malformed.
    """

    def __init__(self, part: Any) -> None:
        spreads, rows = part
        self.part = part
        self.spreads = tuple(map(Spread.from_json, spreads))
        self._chunks = [_without_offsets(row) for row in rows]
        self.layout = Layout.checked(tuple(self._chunks), None, max(map(_end, self._chunks), default=0), self.spreads)
        self._most: dict[tuple[int, int, bool], list[int]] = {}  # by run and unit: the largest offsets that fit
        self._looks = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def chunk(self, index: int, numbers: tuple[int, ...], unit: bool) -> Chunk:
        """One chunk at its offsets."""
        bare = self._chunks[index]
        return Chunk(
            key=bare.key, dtype=bare.dtype, shape=bare.shape, sizes=bare.sizes, start=bare.start, nbytes=bare.nbytes,
            offsets=tuple(n * size for n, size in zip(numbers, bare.sizes, strict=True)) if unit else numbers,
            spread=bare.spread, owners=bare.owners,
        )  # fmt: skip

    def layout_at(self, rows: Any, tree: Any, nbytes: int) -> Layout:
        """The layout of a rank.

        Args:
            rows: its offsets, as runs [number of chunks, offsets, 1 if the offsets are in units of the chunk's sizes].

        Raises:
            CorruptError: a chunk is not a box inside its tensor, or lies outside the shard.
        """
        runs: list[TableRun] = []
        end = 0
        for count, numbers, unit in rows:
            first, end = end, end + _number(count)
            if end == first or end > len(self):
                raise CorruptError(f"layout: offsets for {end} chunks, expected {len(self)}")
            offsets = tuple(map(_number, numbers))
            most = self._most_of(first, end, bool(unit))
            if len(most) != len(offsets) or any(n > limit for n, limit in zip(offsets, most, strict=True)):
                raise CorruptError(f"layout: a chunk at {offsets!r:.100} is not a box inside its tensor")
            runs.append((end, offsets, bool(unit)))
        if end != len(self) or nbytes < self.layout.nbytes:
            raise CorruptError(f"layout: offsets for {end} of {len(self)} chunks, or a chunk outside the shard")
        return Layout(chunks=Chunks(self, runs), tree=tree, nbytes=nbytes, spreads=self.spreads)

    def _most_of(self, first: int, end: int, unit: bool) -> list[int]:
        """The largest offset in each dimension with which all chunks of a run are inside their tensors."""
        known = self._most.get((first, end, unit))
        if known is not None:
            return known
        dims = len(self._chunks[first].shape)
        self._looks += (end - first) * (dims + 1)
        if self._looks > _MAX_LOOKS or len({len(self._chunks[i].shape) for i in range(first, end)}) > 1:
            raise CorruptError("layout: offsets in too many different runs, or one for chunks of different dimensions")
        chunks = self._chunks[first:end]
        most = [min(_room(chunk.shape[d], chunk.sizes[d], unit) for chunk in chunks) for d in range(dims)]
        self._most[first, end, unit] = most
        return most


class Chunks(Sequence[Chunk]):
    """The chunks of one rank, each made on access."""

    def __init__(self, table: ChunkTable, runs: list[TableRun]) -> None:
        self.table = table
        self._runs = runs

    def runs(self) -> list[list[Any]]:
        """The offsets in the form that `ChunkTable.layout_at` takes."""
        firsts = [0, *(end for end, _, _ in self._runs)]
        return [
            [end - first, list(numbers), int(unit)]
            for first, (end, numbers, unit) in zip(firsts, self._runs, strict=False)
        ]

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Chunk:  # type: ignore[override]  # slices are not needed
        if not 0 <= index < len(self):
            raise IndexError(index)
        _, numbers, unit = self._runs[bisect_right(self._runs, index, key=lambda run: run[0])]
        return self.table.chunk(index, numbers, unit)

    def __iter__(self) -> Iterator[Chunk]:
        first = 0
        for end, numbers, unit in self._runs:
            for index in range(first, end):
                yield self.table.chunk(index, numbers, unit)
            first = end

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]


def _without_offsets(row: Any) -> Chunk:
    key, dtype, shape, sizes, start, nbytes, *spread = row
    return Chunk.from_list([key, dtype, shape, [0] * min(len(shape), MAX_DIMS), sizes, start, nbytes, *spread])


def _end(chunk: Chunk) -> int:
    return chunk.start + chunk.nbytes


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise CorruptError(f"layout: got {value!r:.40}, expected a whole number")
    return value


def _room(length: int, size: int, unit: bool) -> int:
    """The largest offset of a box of `size` in a tensor of `length`; with `unit`, in units of the size."""
    if not unit:
        return length - size
    return (length - size) // size if size else MAX_NUMBER
