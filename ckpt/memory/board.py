"""The board of a node: one row per worker, and the gate through which all workers agree where to stop.

It is a file of `4096 + 64 * 64` bytes in the node's memory directory, mapped by all. Only the agent writes the header.
Each worker writes only its row. The node's runner only reads. Every field is one aligned 8-byte word, so no lock is
needed.

With `every_steps: auto` the header also has the number of steps between saves, and the boundary from which on it
counts. It is agreed on in the same way as a stop.

To agree on a stop, the agents first raise the gate and then read the rows. A worker first writes its row and then reads
the gate. So a worker whose row has boundary b has not passed b + 1. The boundary after the furthest of all rows is one
that no worker has passed, and all workers stop there. The gate is lowered as soon as that boundary is known. Then a
worker that waits at the gate continues, which matters if others wait for it in a collective.

If the file is removed, the agent makes another one. It raises the gate on both boards and reads the rows of both,
because a worker may still use the removed one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ckpt.errors import CheckpointError
from holdfast.base.files import durable_write

ROWS = 64
_HEADER_BYTES = 4096
_ROW_BYTES = 64
_NAME = "board"
_SIZE_BYTES = _HEADER_BYTES + ROWS * _ROW_BYTES
_MAGIC = int.from_bytes(b"HOLDFAST", "little")
_VERSION = 1
# Words of the header. From boundary `_FROM` on a save is due every `_EVERY` steps, before it every `_BEFORE` steps.
_MAGIC_AT, _VERSION_AT, _GATE_AT, _STOP_AT, _ATTEMPT_AT, _FROM_AT, _EVERY_AT, _BEFORE_AT = range(8)
_RANK, _ATTEMPT, _BOUNDARY, _STEP, _TIME, _PID, _LEFT, _SECTION = range(8)  # words of a row
# What a worker does between two boundaries. Each has its own limit before the worker counts as hung.
SECTIONS = ("step", "checkpoint", "evaluation")


@dataclass(frozen=True, kw_only=True)
class WorkerRow:
    """The last report of one worker."""

    local_rank: int
    rank: int
    attempt: int
    boundary: int  # step boundaries passed or reached in this attempt
    step: int
    time_s: float  # CLOCK_REALTIME of the report
    pid: int
    left: bool  # whether it has closed its Checkpointer; then it passes no further boundaries
    section: str  # one of SECTIONS


class Board:
    """The mapped board file of one node."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._former: list[memoryview] = []  # only in the agent: removed boards that workers may still use
        self._map()

    @classmethod
    def open(cls, ram_dir: Path | str) -> Board:
        """Maps the board of a node.

        Raises:
            CheckpointError: the file is not a board of this version.
            OSError: there is no board, or the memory directory belongs to another user.
        """
        return cls(Path(ram_dir) / _NAME)

    @classmethod
    def create(cls, ram_dir: Path | str, attempt: int) -> Board:
        """Opens the board, or makes it, and clears it for an attempt. The agent calls this before it listens."""
        path = Path(ram_dir) / _NAME
        if not path.exists():
            durable_write(path, bytes(_SIZE_BYTES), sync=False)
        board = cls(path)
        words = board._words
        words[_GATE_AT] = words[_STOP_AT] = words[_FROM_AT] = words[_EVERY_AT] = words[_BEFORE_AT] = 0
        for word in range(_HEADER_BYTES // 8, _SIZE_BYTES // 8):
            words[word] = 0
        words[_ATTEMPT_AT] = attempt
        words[_VERSION_AT] = _VERSION
        words[_MAGIC_AT] = _MAGIC
        return board

    @property
    def is_there(self) -> bool:
        """Whether the mapped file is the one in the memory directory."""
        try:
            return os.lstat(self._path).st_ino == self._inode
        except OSError:
            return False

    def make_again(self) -> None:
        """Makes a board with the same content after the file was removed. Only for the agent.

        Workers find it at their next boundary. Until then they read the gate of the removed board.
        """
        durable_write(self._path, bytes(self._memory), sync=False)
        self._former.append(self._words)
        self._map()

    def follow(self) -> None:
        """Maps the board that the agent has made after this one was removed. For workers and the runner."""
        if self._path.exists() and not self.is_there:
            former = self._words
            with contextlib.suppress(OSError, CheckpointError):
                self._map()
                former.release()

    def _map(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_size != _SIZE_BYTES:
                raise CheckpointError(
                    f"{self._path}: got {status.st_size} bytes, expected a board of {_SIZE_BYTES}; remove the file"
                )
            memory = mmap.mmap(descriptor, _SIZE_BYTES)
        finally:
            os.close(descriptor)
        words = memoryview(memory).cast("Q")
        if (words[_MAGIC_AT], words[_VERSION_AT]) not in ((0, 0), (_MAGIC, _VERSION)):
            words.release()
            memory.close()
            raise CheckpointError(f"{self._path}: not a board of version {_VERSION}; remove the file")
        self._memory, self._words, self._inode = memory, words, status.st_ino

    @property
    def attempt(self) -> int:
        return self._words[_ATTEMPT_AT]

    @property
    def gate(self) -> int:
        """The boundary from which on workers wait for a decision; 0 if there is none."""
        return self._words[_GATE_AT]

    @property
    def stop_at(self) -> int:
        """The boundary at which all workers stop; 0 if none is agreed."""
        return self._words[_STOP_AT]

    def rows(self) -> list[WorkerRow]:
        """The rows of this attempt's workers, by local rank."""
        rows = (_row(self._words, local_rank) for local_rank in range(ROWS))
        return [row for row in rows if row.pid and row.attempt == self.attempt]

    def boundary(self) -> int:
        """The furthest boundary that a worker of this attempt has reached; 0 before the first."""
        rows = (_row(words, local_rank) for words in self._all for local_rank in range(ROWS))
        return max((row.boundary for row in rows if row.pid and row.attempt == self.attempt), default=0)

    def write_row(self, local_rank: int, *, rank: int, attempt: int, boundary: int, step: int) -> None:
        """Writes a worker's row. Raises CheckpointError if the board has no row for this local rank."""
        if not 0 <= local_rank < ROWS:
            raise CheckpointError(
                f"board: local rank {local_rank}, expected 0 to {ROWS - 1}; start fewer workers per node"
            )
        at = _at(local_rank)
        words = self._words
        words[at + _RANK] = rank
        words[at + _ATTEMPT] = attempt
        words[at + _BOUNDARY] = boundary
        words[at + _STEP] = step
        struct.pack_into("=d", self._memory, (at + _TIME) * 8, time.time())
        words[at + _PID] = os.getpid()
        words[at + _LEFT] = 0

    def set_section(self, local_rank: int, section: str) -> None:
        """Tells what a worker does until the next call; one of SECTIONS."""
        self._words[_at(local_rank) + _SECTION] = SECTIONS.index(section)

    def leave(self, local_rank: int) -> None:
        """Marks a worker's row: it passes no further boundaries."""
        self._words[_at(local_rank) + _LEFT] = 1

    def set_gate(self, boundary: int) -> None:
        """Makes workers wait at every boundary from this one on. Call `boundary()` after this, not before."""
        for words in self._all:
            words[_GATE_AT] = boundary

    def clear_gate(self) -> None:
        """Lets waiting workers continue; nothing was decided."""
        for words in self._all:
            words[_GATE_AT] = 0

    def set_stop(self, boundary: int) -> None:
        """Sets the boundary at which all workers stop, and lets waiting workers continue to it."""
        for words in self._all:
            words[_STOP_AT] = boundary
            words[_GATE_AT] = 0

    def every_steps(self, boundary: int) -> int:
        """The number of steps between saves at a boundary; 0 if none is agreed."""
        return self._words[_EVERY_AT if boundary >= self._words[_FROM_AT] else _BEFORE_AT]

    def set_every_steps(self, steps: int, *, before: int, boundary: int) -> None:
        """Sets the number of steps between saves from a boundary on, and lets waiting workers continue to it."""
        for words in self._all:
            words[_FROM_AT], words[_EVERY_AT], words[_BEFORE_AT] = boundary, steps, before
            words[_GATE_AT] = 0

    def close(self) -> None:
        self._words.release()
        self._memory.close()

    @property
    def _all(self) -> list[memoryview]:
        return [*self._former, self._words]


def _row(words: memoryview, local_rank: int) -> WorkerRow:
    at = _at(local_rank)
    rank, attempt, boundary, step = words[at : at + _TIME]
    (time_s,) = struct.unpack("=d", words[at + _TIME].to_bytes(8, sys.byteorder))
    return WorkerRow(
        local_rank=local_rank, rank=rank, attempt=attempt, boundary=boundary, step=step,
        time_s=time_s, pid=words[at + _PID], left=bool(words[at + _LEFT]),
        section=SECTIONS[min(words[at + _SECTION], len(SECTIONS) - 1)],
    )  # fmt: skip


def _at(local_rank: int) -> int:
    """The first word of a row."""
    return (_HEADER_BYTES + local_rank * _ROW_BYTES) // 8
