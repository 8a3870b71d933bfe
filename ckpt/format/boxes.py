"""Boxes inside tensors, and the choice of chunks that cover the box a rank needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True)
class Box:
    """A hyper-rectangle: offset and size per dimension. Without dimensions it is one element."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The index of this box in a tensor that is exactly `outer`."""
        starts = (a - b for a, b in zip(self.offsets, outer.offsets, strict=True))
        return tuple(slice(start, start + size) for start, size in zip(starts, self.sizes, strict=True))

    def span(self, outer: Box) -> tuple[int, int]:
        """The first element of this box, and one past its last, in `outer`'s row-major order; (0, 0) if empty."""
        if not self.elements:
            return (0, 0)
        first = last = 0
        for index, size in zip(self.within(outer), outer.sizes, strict=True):
            first = first * size + index.start
            last = last * size + index.stop - 1
        return (first, last + 1)


T = TypeVar("T")


def intersect(a: Box, b: Box) -> Box | None:
    """The intersection of two boxes; None if it is empty."""
    starts = tuple(max(x, y) for x, y in zip(a.offsets, b.offsets, strict=True))
    ends = tuple(min(x + n, y + m) for x, n, y, m in zip(a.offsets, a.sizes, b.offsets, b.sizes, strict=True))
    if any(start >= end for start, end in zip(starts, ends, strict=True)):
        return None
    return Box(starts, tuple(end - start for start, end in zip(starts, ends, strict=True)))


def subtract(a: Box, hole: Box) -> Iterator[Box]:
    """The remainder of a box without `hole`, which lies inside it, as disjoint boxes."""
    offsets, sizes = list(a.offsets), list(a.sizes)
    for i, (start, size) in enumerate(zip(hole.offsets, hole.sizes, strict=True)):
        before, after = start - offsets[i], offsets[i] + sizes[i] - start - size
        if before:
            yield Box(tuple(offsets), (*sizes[:i], before, *sizes[i + 1 :]))
        if after:
            yield Box((*offsets[:i], start + size, *offsets[i + 1 :]), (*sizes[:i], after, *sizes[i + 1 :]))
        offsets[i], sizes[i] = start, size


def cover(wanted: Box, chunks: Iterable[tuple[Box, T]]) -> tuple[list[tuple[Box, Box, T]], list[Box]]:
    """Chooses parts of chunks so that each element of a box is read once.

    Args:
        chunks: the available boxes with their identifiers, preferred ones first. They may overlap. Iterated lazily.

    Returns:
        The parts to read as (part, the chunk's box, its identifier), and the boxes that no chunk covers.
    """
    parts: list[tuple[Box, Box, T]] = []
    missing = [wanted] if wanted.elements else []
    if not missing:
        return parts, missing
    for box, source in chunks:
        rest: list[Box] = []
        for gap in missing:
            part = intersect(gap, box)
            if part is None:
                rest.append(gap)
            else:
                parts.append((part, box, source))
                rest.extend(subtract(gap, part))
        missing = rest
        if not missing:
            break
    return parts, missing
