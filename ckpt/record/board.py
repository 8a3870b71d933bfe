"""The board of a node: one row per worker, and the gate through which all workers agree where to stop.

One file of `4096 + 64 * 64` bytes in the node's memory directory, mapped by all. The agent alone writes the header,
each worker alone writes its row, the node's runner only reads. Every field is one aligned 8-byte word, so no lock is
needed.

The agreement: the agents raise the gate, and look at the rows after that. A worker writes its row and then looks at the
gate; so a worker whose row shows boundary b has not passed b + 1, and one more than the furthest of all rows is a
boundary that nobody has passed: there all stop. The gate is lowered as soon as that is known, so that a worker waiting
at it comes along even when others wait for it in a collective.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from ckpt.errors import CheckpointError

ROWS = 64
_HEADER_BYTES = 4096
_ROW_BYTES = 64
_SIZE_BYTES = _HEADER_BYTES + ROWS * _ROW_BYTES
_MAGIC = int.from_bytes(b"HOLDFAST", "little")
_VERSION = 1
_MAGIC_AT, _VERSION_AT, _GATE_AT, _STOP_AT, _ATTEMPT_AT = range(5)  # words of the header
_RANK, _ATTEMPT, _BOUNDARY, _STEP, _TIME, _PID, _LEFT, _CLOSED = range(8)  # words of a row


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one worker last said of itself."""

    local_rank: int
    rank: int
    attempt: int
    boundary: int  # step boundaries passed or reached in this attempt
    step: int
    time_s: float  # CLOCK_REALTIME when it said so
    pid: int
    left: bool  # it has closed its Checkpointer: no further boundaries are to be expected of it


class Board:
    """The mapped board file of one node."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._words = memoryview(memory).cast("Q")

    @classmethod
    def open(cls, ram_dir: Path | str) -> Board:
        """Maps the board of a node; makes an empty one where there is none yet.

        Raises:
            CheckpointError: the file is no board of this version.
            OSError: the memory directory is missing or not ours.
        """
        path = Path(ram_dir) / "board"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size not in (0, _SIZE_BYTES):
                raise CheckpointError(f"{path}: got {size} bytes, expected a board of {_SIZE_BYTES}; remove the file")
            os.posix_fallocate(descriptor, 0, _SIZE_BYTES)  # a full tmpfs is an error here, not a SIGBUS later
            board = cls(mmap.mmap(descriptor, _SIZE_BYTES))
        finally:
            os.close(descriptor)
        magic, version = board._words[_MAGIC_AT], board._words[_VERSION_AT]
        if (magic, version) not in ((0, 0), (_MAGIC, _VERSION)):
            board.close()
            raise CheckpointError(f"{path}: not a board of version {_VERSION}; remove the file")
        return board

    @classmethod
    def create(cls, ram_dir: Path | str, attempt: int) -> Board:
        """Opens the board and clears it for an attempt. For the agent, before it listens."""
        board = cls.open(ram_dir)
        words = board._words
        words[_GATE_AT] = words[_STOP_AT] = 0
        for word in range(_HEADER_BYTES // 8, _SIZE_BYTES // 8):
            words[word] = 0
        words[_ATTEMPT_AT] = attempt
        words[_VERSION_AT] = _VERSION
        words[_MAGIC_AT] = _MAGIC
        return board

    @property
    def attempt(self) -> int:
        return self._words[_ATTEMPT_AT]

    @property
    def gate(self) -> int:
        """The boundary from which on workers wait for a decision; 0 for none."""
        return self._words[_GATE_AT]

    @property
    def stop_at(self) -> int:
        """The boundary at which all workers stop; 0 while none is agreed."""
        return self._words[_STOP_AT]

    def rows(self) -> list[Row]:
        """The rows of workers of this attempt, by local rank."""
        rows = (self._row(local_rank) for local_rank in range(ROWS))
        return [row for row in rows if row.pid and row.attempt == self.attempt]

    def boundary(self) -> int:
        """The furthest boundary that a worker of this attempt has reached; 0 before the first."""
        return max((row.boundary for row in self.rows()), default=0)

    def write_row(self, local_rank: int, *, rank: int, attempt: int, boundary: int, step: int) -> None:
        """A worker's word on itself. Raises CheckpointError when the board has no row for this local rank."""
        if not 0 <= local_rank < ROWS:
            raise CheckpointError(
                f"board: local rank {local_rank}, expected 0 to {ROWS - 1}; start fewer workers per node"
            )
        at = self._at(local_rank)
        words = self._words
        words[at + _RANK] = rank
        words[at + _ATTEMPT] = attempt
        words[at + _BOUNDARY] = boundary
        words[at + _STEP] = step
        struct.pack_into("=d", self._memory, (at + _TIME) * 8, time.time())
        words[at + _PID] = os.getpid()
        words[at + _LEFT] = 0

    def leave(self, local_rank: int) -> None:
        """A worker's word that it passes no further boundaries."""
        self._words[self._at(local_rank) + _LEFT] = 1

    def set_closed(self, local_rank: int, attempt: int, session: int) -> None:
        """A worker's word that it has closed its Checkpointer, its `session`-th: for agents that did not hear it."""
        if 0 <= local_rank < ROWS and attempt == self.attempt:
            self._words[self._at(local_rank) + _CLOSED] = session

    def closed(self, local_rank: int) -> int:
        """Which of its Checkpointers a worker of this attempt has closed last; 0 for none."""
        return self._words[self._at(local_rank) + _CLOSED] if local_rank < ROWS else 0

    def set_gate(self, boundary: int) -> None:
        """Makes workers wait at every boundary from this one on. Call `boundary()` after this, not before."""
        self._words[_GATE_AT] = boundary

    def clear_gate(self) -> None:
        """Lets waiting workers go on; nothing was decided."""
        self._words[_GATE_AT] = 0

    def set_stop(self, boundary: int) -> None:
        """Decides that all workers stop at this boundary, and lets those that wait go on to it."""
        self._words[_STOP_AT] = boundary
        self._words[_GATE_AT] = 0

    def close(self) -> None:
        """Unmaps the file."""
        self._words.release()
        self._memory.close()

    def _row(self, local_rank: int) -> Row:
        at = self._at(local_rank)
        rank, attempt, boundary, step = self._words[at : at + _TIME]
        (time_s,) = struct.unpack_from("=d", self._memory, (at + _TIME) * 8)
        return Row(
            local_rank=local_rank, rank=rank, attempt=attempt, boundary=boundary, step=step,
            time_s=time_s, pid=self._words[at + _PID], left=bool(self._words[at + _LEFT]),
        )  # fmt: skip

    @staticmethod
    def _at(local_rank: int) -> int:
        """The first word of a row."""
        return (_HEADER_BYTES + local_rank * _ROW_BYTES) // 8
