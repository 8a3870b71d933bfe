"""The times of a worker's last steps, in memory that the runner reads: in data, compute and communication.

The worker writes them into a memfd at each end of a step. The runner reads them there without asking the worker, so a
worker that is slow or stopped is read as fast as any other.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from statistics import median

from holdfast.base.processes import open_memfd
from holdfast.base.sections import SECTIONS
from launcher.diagnosis.slow_rank import RankTimes

KEPT = 256  # steps; more between two reads are not read

_FEWEST = 5  # steps of which the runner tells the medians
_NODES_A_STEP = 50  # the supervisor of thousands of nodes gets fewer reports

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


class StepReader:
    """In the runner: reads the steps of one worker.

    Args:
        fewest: the number of steps that a report has at least.
    """

    def __init__(self, rank: int, pid: int, fewest: int) -> None:
        self._fewest = fewest
        self._rank = rank
        self._pid = pid
        self._memory: int | None = None
        self._read = 0

    def take(self) -> RankTimes | None:
        """The medians of the steps since the last call that had any; None for too few."""
        if self._memory is None:
            self._memory = open_memfd(self._pid, _MEMFD)  # the worker makes it a moment after its start
        if self._memory is None:
            return None
        (count,) = _HEAD.unpack(os.pread(self._memory, _HEAD.size, 0))
        new = min(count - self._read, KEPT - 1)  # the worker may be writing the oldest
        if new < self._fewest:
            return None
        rows = os.pread(self._memory, KEPT * _ROW.size, _HEAD.size)
        steps = [_ROW.unpack_from(rows, _at(index) - _HEAD.size) for index in range(count - new, count)]
        self._read = count
        return RankTimes(self._rank, new, *(median(part) / _NS for part in zip(*steps, strict=True)))

    def close(self) -> None:
        if self._memory is not None:
            with contextlib.suppress(OSError):
                os.close(self._memory)
            self._memory = None


def fewest_steps(nodes: int) -> int:
    """The number of steps that a report has at least, in a job of this size."""
    return min(KEPT // 2, max(_FEWEST, nodes // _NODES_A_STEP))


def _at(step: int) -> int:
    return _HEAD.size + step % KEPT * _ROW.size
