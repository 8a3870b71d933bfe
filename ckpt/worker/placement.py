"""The place of a live tensor in the whole tensor: this rank's boxes, and the ranks that hold the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ckpt.errors import StateError
from ckpt.format.boxes import Box
from ckpt.format.json_values import Path, name_of
from ckpt.format.rank_grid import UNKNOWN, Spread
from ckpt.worker.lazy_torch import is_dtensor, torch
from ckpt.worker.tensors import Local

Group = Sequence[int]  # ranks that hold the same data, in the order in which they divide it
IndexRun = tuple[int, int]  # of indices along one dimension: the first index and the count


@dataclass(frozen=True)
class PlacedBox:
    """A box of the whole tensor, and its index in the local tensor."""

    box: Box
    index: tuple[Any, ...] = (...,)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A tensor on any device, or an array, to stage, and its box in the whole tensor."""

    key: str
    data: Local
    number: int = 0  # number of its value in the state
    index: tuple[Any, ...] = (...,)  # index of the data in the value's local tensor
    shape: tuple[int, ...]
    box: Box
    spread: Spread | None = None  # the ranks over which the tensor is distributed; None if it is this rank's alone
    group: Group | None = None  # the ranks that hold this same box

    @property
    def nbytes(self) -> int:
        return self.box.elements * int(self.data.dtype.itemsize)


def parts_of(value: Any, path: Path) -> tuple[PlacedBox, ...]:
    """The boxes of the whole tensor that a tensor's or array's local data consists of.

    A plain tensor is one box. So is a DTensor's local tensor, unless a strided shard leaves gaps between its rows. A
    rank of the mesh without elements has one empty box; a rank outside the mesh has none.

    Raises:
        StateError: the shape of the local tensor does not match the placements of its DTensor.
    """
    if not is_dtensor(value):
        return (PlacedBox(Box((0,) * value.ndim, tuple(value.shape))),)
    mesh, shape = value.device_mesh, tuple(value.shape)
    if (coordinate := mesh.get_coordinate()) is None:
        return ()
    parts = cut(shape, tuple(mesh.shape), tuple(coordinate), tuple(value.placements))
    expected = tuple(index.stop for index in parts[-1].index) if len(parts) > 1 else parts[0].box.sizes
    if (found := tuple(value._local_tensor.shape)) != expected:
        raise StateError(
            f"{name_of(path)}: the local tensor of a DTensor of shape {list(shape)} has shape {list(found)}, expected "
            f"{list(expected)} for {value.placements} at {coordinate} of {list(mesh.shape)}; redistribute it"
        )
    return parts


@lru_cache(maxsize=1 << 12)
def cut(
    shape: tuple[int, ...], mesh: tuple[int, ...], coordinate: tuple[int, ...], placements: tuple[Any, ...]
) -> tuple[PlacedBox, ...]:
    """The boxes at one coordinate of a mesh, divided as torch does: by the mesh's dimensions in turn."""
    runs: list[list[IndexRun]] = [[(0, size)] for size in shape]
    for size, at, placement in zip(mesh, coordinate, placements, strict=True):
        if not placement.is_replicate():
            taken = _taken(placement, sum(count for _, count in runs[placement.dim]), size, at)
            runs[placement.dim] = list(_pick(runs[placement.dim], taken))
    if len(shape) == sum(map(len, runs)):
        return (PlacedBox(Box(tuple(run[0][0] for run in runs), tuple(run[0][1] for run in runs))),)
    return tuple(
        PlacedBox(
            Box(tuple(first for _, first, _ in corner), tuple(count for _, _, count in corner)),
            tuple(slice(local, local + count) for local, _, count in corner),
        )
        for corner in itertools.product(*map(_with_local, runs))
    )


def _taken(placement: Any, count: int, parts: int, at: int) -> list[IndexRun]:
    """The runs of `count` indices that a placement gives to the member `at` of `parts`."""
    if type(placement) is torch.distributed.tensor.Shard:
        step = -(-count // parts)
        first = min(at * step, count)
        return [(first, min(step, count - first))]
    # Torch computes the division of a strided shard itself, because it differs between torch versions.
    indices = torch.arange(count).view((1,) * placement.dim + (count,))
    split, _ = placement._split_tensor(indices, parts, with_padding=False, contiguous=False)
    rows = split[at].flatten().numpy()
    starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
    counts = np.diff(starts, append=len(rows))
    return [(int(rows[start]), int(n)) for start, n in zip(starts, counts, strict=True)] or [(count, 0)]


def _pick(runs: list[IndexRun], taken: list[IndexRun]) -> Iterator[IndexRun]:
    """The runs of indices that `taken` selects, counted along `runs`; one empty run if it selects none."""
    found: list[IndexRun] = []
    for first, count in taken:
        start = 0
        for base, size in runs:
            low, high = max(first, start), min(first + count, start + size)
            if low < high:
                run = (base + low - start, high - low)
                if found and sum(found[-1]) == run[0]:
                    run = (found[-1][0], found.pop()[1] + run[1])
                found.append(run)
            start += size
    yield from found or [(sum(runs[-1]), 0)]


def _with_local(runs: list[IndexRun]) -> Iterator[tuple[int, int, int]]:
    """Each run's start in the local tensor, its first index and its length."""
    local = 0
    for first, count in runs:
        yield local, first, count
        local += count


def is_elsewhere(value: Any) -> bool:
    """Whether this rank is outside a DTensor's mesh. The local shape there means nothing."""
    return is_dtensor(value) and value.device_mesh.get_coordinate() is None


def spread_of(value: Any) -> Spread:
    """The mesh of a DTensor, with global ranks."""
    splits: list[int | None] = []
    strided = set()
    for placement in value.placements:
        if placement.is_replicate():
            splits.append(None)
            continue
        if type(placement) is not torch.distributed.tensor.Shard:
            strided.add(placement.dim)
        splits.append(UNKNOWN if placement.dim in strided else placement.dim)
    ranks = as_group(value.device_mesh.mesh.flatten().tolist())
    return Spread(shape=tuple(value.device_mesh.shape), ranks=ranks, splits=tuple(splits))


def replicas_of(value: Any) -> Group | None:
    """The ranks that hold the same part of a DTensor as this rank; None if no other rank does."""
    coordinate = value.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    index = tuple(
        slice(None) if placement.is_replicate() else at
        for placement, at in zip(value.placements, coordinate, strict=True)
    )
    ranks = value.device_mesh.mesh[index].flatten().tolist()
    return as_group(ranks) if len(ranks) > 1 else None


def as_group(ranks: Sequence[int]) -> Group:
    """The ranks as a range if they are consecutive, which is cheaper to compare and store than many numbers."""
    regular = bool(ranks) and list(ranks) == list(range(ranks[0], ranks[0] + len(ranks)))
    return range(ranks[0], ranks[0] + len(ranks)) if regular else tuple(ranks)
