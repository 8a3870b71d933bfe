"""The saved ranks that are likely to hold the other parts of a tensor, so that a reader need not ask all ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt.format.boxes import Box
from ckpt.format.parsing import parsing

MAX_GRID_DIMS = 64  # of a grid
MAX_RANKS = 99_999  # of a run: names of files have five digits
UNKNOWN = -1  # a split whose boxes only the layouts give


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A grid of ranks over which a tensor is distributed.

    It only says which ranks to try first. A rank's layout says what the rank really holds.
    """

    shape: tuple[int, ...]  # of the grid
    ranks: Sequence[int]  # in row-major order; a range if they are consecutive
    splits: tuple[int | None, ...]  # by grid dimension: the tensor dimension that it divides, None for replicas

    def likely(self, tensor: tuple[int, ...], owners: tuple[int, int] | None, wanted: Box, turn: int) -> Iterator[int]:
        """The ranks that are likely to hold parts of a box.

        Args:
            owners: first and last of the replicas that divide the tensor; None if each stores its whole box.
            turn: selects the first of equal replicas, so that readers use different ones.
        """
        if wanted.elements:
            yield from self._visit(0, 0, 0, Box((0,) * len(tensor), tensor), owners, wanted, turn)

    def _visit(
        self, dim: int, index: int, replica: int, box: Box, owners: tuple[int, int] | None, wanted: Box, turn: int
    ) -> Iterator[int]:
        if dim == len(self.shape):
            yield self.ranks[index]
            return
        size, split = self.shape[dim], self.splits[dim]
        if split is not None and 0 <= split < len(box.sizes):
            step = -(-box.sizes[split] // size)
            first = max(0, (wanted.offsets[split] - box.offsets[split]) // step) if step else size
            end = min(size, -(-(wanted.offsets[split] + wanted.sizes[split] - box.offsets[split]) // (step or 1)))
            for i in range(first, end):
                yield from self._visit(
                    dim + 1, index * size + i, replica, _slab(box, split, i * step, step), owners, wanted, turn
                )
            return
        first, end = 0, size
        if split is None:
            inner = math.prod(
                n for n, s in zip(self.shape[dim + 1 :], self.splits[dim + 1 :], strict=True) if s is None
            )
            if owners:
                first = max(0, owners[0] // inner - replica * size)
                end = min(size, owners[1] // inner - replica * size + 1)
        for i in range(first, end):
            at = i if owners else (i + turn) % size
            below = replica * size + at if split is None else replica
            yield from self._visit(dim + 1, index * size + at, below, box, owners, wanted, turn)

    @property
    def last_rank(self) -> int:
        return self.ranks[-1] if isinstance(self.ranks, range) else max(self.ranks)

    def to_json(self) -> list[Any]:
        """Regular grids take the same space for many ranks as for few."""
        regular = isinstance(self.ranks, range)
        ranks = [self.ranks[0], len(self.ranks)] if regular else list(self.ranks)
        return [list(self.shape), ranks, regular, list(self.splits)]

    @classmethod
    @parsing("spread")
    def from_json(cls, value: Any) -> Spread:
        """Raises CorruptError unless the grid has a rank in each place."""
        shape, ranks, regular, splits = value
        if len(shape) > MAX_GRID_DIMS or any(type(n) is not int or not 0 <= n <= MAX_RANKS for n in (*shape, *ranks)):
            raise ValueError(f"{value!r:.200}: expected numbers of ranks, and at most {MAX_GRID_DIMS} dimensions")
        spread = cls(
            shape=tuple(shape),
            ranks=range(ranks[0], ranks[0] + ranks[1]) if regular else tuple(ranks),
            splits=tuple(splits),
        )
        known = all(split is None or type(split) is int for split in spread.splits)
        places = math.prod(spread.shape)
        if not known or not places or (len(spread.ranks), len(spread.splits)) != (places, len(spread.shape)):
            raise ValueError(f"{value!r:.200}: not a grid of ranks")
        return spread


def _slab(box: Box, dim: int, start: int, size: int) -> Box:
    """The part of a box from `start` along one dimension, cut off at the end of the box."""
    start = min(start, box.sizes[dim])
    offsets, sizes = list(box.offsets), list(box.sizes)
    offsets[dim] += start
    sizes[dim] = min(size, sizes[dim] - start)
    return Box(tuple(offsets), tuple(sizes))
