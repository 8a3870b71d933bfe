"""The unit of a save: one box of a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ckpt.format.boxes import Box
from ckpt.format.rank_grid import Spread
from ckpt.worker.placement import Group
from ckpt.worker.tensors import Local


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
