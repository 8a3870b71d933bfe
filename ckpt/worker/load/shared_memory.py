"""Targets of a load that share memory: refused, before a byte changes, unless all saved values fit into it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ckpt.errors import StateError
from ckpt.format.boxes import Box
from ckpt.format.json_values import Path, name_of
from ckpt.worker.lazy_torch import torch
from ckpt.worker.tensors import Local

_MAX_WORK: Any = 10_000  # of NumPy's exact search for a common element; what is harder counts as shared


@dataclass(frozen=True, kw_only=True)
class Target:
    """A live tensor or array, or a box of it, that a load fills."""

    data: Local
    node: Any  # names the saved tensor
    box: Box  # of the whole tensor
    path: Path


ReadTarget = Callable[[Target, Local], object]  # reads the saved value of a target into other memory


def refuse_lost_values(targets: list[Target], read: ReadTarget) -> None:
    """Compares the saved values of targets that share memory, such as two keys of one tied tensor.

    Raises:
        StateError: one saved value would overwrite a different one. The message names both keys.
    """
    for group in _groups([_Place.of(target) for target in targets if _size(target.data)]):
        if _any_shared(group):
            _compare(group, read)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """The memory of a target, of any device."""

    target: Target
    address: int
    strides: tuple[int, ...]  # in bytes
    itemsize: int

    @classmethod
    def of(cls, target: Target) -> _Place:
        data = target.data
        if isinstance(data, np.ndarray):
            address, strides, itemsize = data.ctypes.data, data.strides, data.itemsize
        else:
            address, itemsize = data.data_ptr(), data.element_size()
            strides = tuple(stride * itemsize for stride in data.stride())
        return cls(target=target, address=address, strides=strides, itemsize=itemsize)

    @cached_property
    def start(self) -> int:
        """The address of the lowest byte."""
        return self.address + sum(reach for reach in self._reaches if reach < 0)

    @cached_property
    def end(self) -> int:
        return self.address + sum(reach for reach in self._reaches if reach > 0) + self.itemsize

    @property
    def _reaches(self) -> list[int]:
        return [stride * (n - 1) for stride, n in zip(self.strides, self.shape, strict=True)]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.target.data.shape)

    @cached_property
    def elements(self) -> np.ndarray:
        """An array with the addresses of the elements. Its bytes are never read."""
        return np.asarray(_Elements(self.address, self.shape, self.strides, self.itemsize))

    def shares(self, other: _Place) -> bool:
        """Whether the two have an element in common."""
        try:
            return np.shares_memory(self.elements, other.elements, max_work=_MAX_WORK)
        except np.exceptions.TooHardError:
            return True

    def bytes_in(self, memory: np.ndarray, start: int) -> np.ndarray:
        """The bytes of the elements, in memory that stands for what begins at an address."""
        shape, strides = (*self.shape, self.itemsize), (*self.strides, 1)
        return np.ndarray(shape, np.uint8, memory.data, self.address - start, strides)


class _Elements:
    """Gives NumPy addresses, also those of another device's memory."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> None:
        self.__array_interface__ = {
            "version": 3, "data": (address, True), "shape": shape, "strides": strides, "typestr": f"|V{itemsize}",
        }  # fmt: skip


def _groups(places: list[_Place]) -> Iterator[list[_Place]]:
    """The places whose ranges of addresses overlap. CUDA's addresses differ from the host's and between GPUs."""
    group: list[_Place] = []
    end = 0
    for place in sorted(places, key=lambda place: place.start):
        if place.start >= end:
            if len(group) > 1:
                yield group
            group = []
        group.append(place)
        end = max(end, place.end)
    if len(group) > 1:
        yield group


def _any_shared(group: list[_Place]) -> bool:
    """Whether two places have an element in common. Columns of one matrix have none."""
    neighbours = any(one.shares(other) for one, other in pairwise(group))
    return neighbours or any(one.shares(other) for i, one in enumerate(group) for other in group[i + 2 :])


def _compare(group: list[_Place], read: ReadTarget) -> None:
    """Fills memory of its own as the load would fill the live one, and looks for saved values that are gone."""
    start, end = group[0].start, max(place.end for place in group)
    memory = np.zeros(end - start, np.uint8)
    for place in group:
        place.bytes_in(memory, start)[...] = _saved_bytes(place.target, read)
    for i, place in enumerate(group):
        if not np.array_equal(place.bytes_in(memory, start), _saved_bytes(place.target, read)):
            other = next((other for other in group[i + 1 :] if place.shares(other)), group[-1])
            one, two = name_of(place.target.path), name_of(other.target.path)
            raise StateError(
                f"{one} and {two}: share memory in the live state, and were saved with different values; build the "
                "state as it was saved (clone() one of the two, or untie them)"
            )


def _saved_bytes(target: Target, read: ReadTarget) -> np.ndarray:
    data = target.data
    if isinstance(data, np.ndarray):
        array = np.empty(data.shape, data.dtype)
        read(target, array)
        return array.reshape(-1).view(np.uint8).reshape(*array.shape, array.itemsize)
    tensor = torch.empty(tuple(data.shape), dtype=data.dtype)
    read(target, tensor)
    flat: np.ndarray = tensor.reshape(-1).view(torch.uint8).numpy()
    return flat.reshape(*tensor.shape, tensor.element_size())


def _size(data: Local) -> int:
    return int(data.size if isinstance(data, np.ndarray) else data.numel())
