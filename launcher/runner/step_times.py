"""The times of a worker's last steps, in memory that the runner reads: in data, compute and communication.

The worker writes them into a memfd at each end of a step. The runner reads them there without asking the worker, so a
worker that is slow or stopped is read as fast as any other.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from dataclasses import dataclass
from statistics import median

from holdfast.base.processes import open_memfd
from holdfast.base.sections import SECTIONS

KEPT = 256  # steps; more between two reads are not read
FEWEST = 5  # steps of which the runner tells the medians

_MEMFD = "holdfast-steps"
_HEAD = struct.Struct("=Q")  # the number of steps that were written
_ROW = struct.Struct(f"={len(SECTIONS)}Q")  # nanoseconds
_NS = 1e9


class StepMemory:
    """In a worker: the memory, made once."""

    def __init__(self) -> None:
        descriptor = os.memfd_create(_MEMFD)  # stays open, so that the runner finds it
        os.ftruncate(descriptor, _HEAD.size + KEPT * _ROW.size)
        self._memory = mmap.mmap(descriptor, 0)
        self._count = 0

    def write(self, data_ns: int, compute_ns: int, communication_ns: int) -> None:
        """Adds a step. The number of steps is written last."""
        _ROW.pack_into(self._memory, _at(self._count), data_ns, compute_ns, communication_ns)
        self._count += 1
        _HEAD.pack_into(self._memory, 0, self._count)


@dataclass(frozen=True, kw_only=True)
class RankTimes:
    """The medians of some steps of one rank, in seconds."""

    rank: int
    steps: int
    data_s: float
    compute_s: float
    communication_s: float

    def to_row(self) -> list[float]:
        """As in the message "heartbeat"."""
        return [self.rank, self.steps, self.data_s, self.compute_s, self.communication_s]

    @classmethod
    def from_row(cls, row: list[float]) -> RankTimes:
        """Raises ValueError for what is no such row."""
        rank, steps, data_s, compute_s, communication_s = row
        return cls(
            rank=int(rank), steps=int(steps), data_s=data_s, compute_s=compute_s, communication_s=communication_s
        )


class StepReader:
    """In the runner: reads the steps of one worker."""

    def __init__(self, rank: int, pid: int) -> None:
        self._rank = rank
        self._pid = pid
        self._memory: int | None = None
        self._read = 0

    def take(self) -> RankTimes | None:
        """The medians of the steps since the last call that had any; None for fewer than FEWEST."""
        if self._memory is None:
            self._memory = open_memfd(self._pid, _MEMFD)  # the worker makes it a moment after its start
        if self._memory is None:
            return None
        (count,) = _HEAD.unpack(os.pread(self._memory, _HEAD.size, 0))
        new = min(count - self._read, KEPT - 1)  # the worker may be writing the oldest
        if new < FEWEST:
            return None
        rows = os.pread(self._memory, KEPT * _ROW.size, _HEAD.size)
        steps = [_ROW.unpack_from(rows, _at(index) - _HEAD.size) for index in range(count - new, count)]
        self._read = count
        data_s, compute_s, communication_s = (median(part) / _NS for part in zip(*steps, strict=True))
        return RankTimes(
            rank=self._rank, steps=new, data_s=data_s, compute_s=compute_s, communication_s=communication_s
        )

    def close(self) -> None:
        if self._memory is not None:
            with contextlib.suppress(OSError):
                os.close(self._memory)
            self._memory = None


def _at(step: int) -> int:
    return _HEAD.size + step % KEPT * _ROW.size
