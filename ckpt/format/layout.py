"""The bytes of each tensor in a shard, and the structure of Python values around the tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ckpt.errors import CorruptError
from ckpt.format.parsing import checked_depth, parsing
from ckpt.format.rank_grid import Spread

ALIGN_BYTES = 64  # a cache line; a multiple of every dtype's size
MAX_DIMS = 64  # of a tensor; torch and NumPy have no more
MAX_NUMBER = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A box of one tensor, stored contiguously in row-major order.

    A tensor that is not distributed is one chunk with offsets 0 and sizes == shape. If this rank stores nothing of a
    replicated tensor, its chunk has no elements. The chunk then gives the dtype, the shape and the ranks that have the
    rest.
    """

    key: str  # path of the tensor in the state, parts joined by '/'; for torch DCP the fully qualified name
    dtype: str  # torch's or NumPy's name without the module: "float32", "bfloat16"
    shape: tuple[int, ...]  # of the whole tensor
    offsets: tuple[int, ...]  # of this box in the whole tensor, per dimension
    sizes: tuple[int, ...]  # of this box, per dimension
    start: int  # first byte in the shard, a multiple of ALIGN_BYTES
    nbytes: int
    spread: int | None = None  # index into the layout's spreads; None: the tensor is this rank's alone
    owners: tuple[int, int] | None = None  # first and last of the replicas that divide it among them

    def to_list(self) -> list[Any]:
        row = [self.key, self.dtype, *map(list, (self.shape, self.offsets, self.sizes)), self.start, self.nbytes]
        return row if self.spread is None else [*row, [self.spread, *(self.owners or ())]]

    @classmethod
    def from_list(cls, row: list[Any]) -> Chunk:
        """Raises CorruptError unless the row is a box inside its tensor."""
        try:
            key, dtype, shape, offsets, sizes, start, nbytes, *more = row
            grid: list[Any] = more[0] if more else [None]
            spread, *owners = grid
            chunk = cls(
                key=str(key), dtype=str(dtype), shape=tuple(shape), offsets=tuple(offsets), sizes=tuple(sizes),
                start=start, nbytes=nbytes, spread=spread, owners=(owners[0], owners[-1]) if owners else None,
            )  # fmt: skip
            numbers = (*chunk.shape, *chunk.offsets, *chunk.sizes, start, nbytes, *(more[0] if more else ()))
            if len(chunk.shape) > MAX_DIMS or any(type(n) is not int or not 0 <= n < MAX_NUMBER for n in numbers):
                raise ValueError(f"expected whole numbers, and at most {MAX_DIMS} dimensions")
            if len(owners) not in (0, 2):
                raise ValueError(f"{len(owners)} owners, expected the first and the last")
            inside = all(o + n <= s for o, n, s in zip(chunk.offsets, chunk.sizes, chunk.shape, strict=True))
            if not inside:
                raise ValueError("not a box inside its tensor")
            elements = math.prod(chunk.sizes)
            if nbytes % elements if elements else nbytes:
                raise ValueError(f"{nbytes} bytes do not divide into {elements} elements")
        except (TypeError, ValueError) as error:
            raise CorruptError(f"layout: bad chunk {row!r:.200}: {error}") from None
        return chunk


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of one rank's shard: its chunks, and the tree of Python values that names tensors by key."""

    chunks: Sequence[Chunk]
    tree: Any  # JSON; see ckpt.format.json_values
    nbytes: int  # of the whole shard, padding included
    spreads: tuple[Spread, ...] = ()  # the ranks over which the chunks' tensors are distributed

    def to_json(self) -> dict[str, Any]:
        value = {"nbytes": self.nbytes, "chunks": [chunk.to_list() for chunk in self.chunks], "tree": self.tree}
        return {**value, "spreads": [spread.to_json() for spread in self.spreads]} if self.spreads else value

    @property
    def last_rank(self) -> int:
        """The highest rank over which a tensor is distributed; -1 if none is."""
        return max((spread.last_rank for spread in self.spreads), default=-1)

    @classmethod
    @parsing("layout")
    def from_json(cls, value: dict[str, Any] | Layout) -> Layout:
        """The layout in its JSON form, or one that has been checked already.

        Raises CorruptError unless every chunk lies inside the shard, or if the tree is too deep.
        """
        if isinstance(value, Layout):
            return value
        chunks = tuple(map(Chunk.from_list, value["chunks"]))
        spreads = tuple(map(Spread.from_json, value.get("spreads", ())))
        return cls.checked(chunks, checked_depth(value["tree"]), value["nbytes"], spreads)

    @classmethod
    def checked(cls, chunks: tuple[Chunk, ...], tree: Any, nbytes: Any, spreads: tuple[Spread, ...]) -> Layout:
        """Raises CorruptError unless every chunk lies inside the shard and names a spread that exists."""
        layout = cls(chunks=chunks, tree=tree, nbytes=nbytes, spreads=spreads)
        if (
            type(layout.nbytes) is not int
            or layout.nbytes < 0
            or any(c.start + c.nbytes > layout.nbytes for c in layout.chunks)
        ):
            raise CorruptError("layout: a chunk lies outside the shard")
        if any(c.spread is not None and c.spread >= len(layout.spreads) for c in layout.chunks):
            raise CorruptError("layout: a chunk names a spread that does not exist")
        return layout


def align(nbytes: int) -> int:
    """`nbytes`, rounded up to a multiple of ALIGN_BYTES."""
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
