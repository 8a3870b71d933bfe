"""Which steps are saved, and where all ranks stop: no collective, one look at shared memory per step."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ckpt.memory.board import Board

_GATE_POLL_S = 0.001

log = logging.getLogger(__name__)


class Cadence:
    """Counts step boundaries on the board and reads the agents' decision there; see `ckpt.memory.board`."""

    def __init__(
        self, board: Board, *, every_steps: Sequence[int], rank: int, local_rank: int, attempt: int, gate_s: float
    ) -> None:
        self._board = board
        self._every_steps = tuple(every_steps)
        self._rank = rank
        self._local_rank = local_rank
        self._attempt = attempt
        self._gate_s = gate_s
        self._boundary = 0
        self._step = 0
        self._due_called = False
        self._ignored_gate = 0
        self.stopping = False

    def due(self, step: int) -> bool:
        """Whether this step is to be saved; passes a boundary."""
        self._step = step
        self._due_called = True
        self._pass_boundary()
        return self.stopping or any(step % every == 0 for every in self._every_steps)

    def stop_requested(self) -> bool:
        """Whether all ranks stop here; passes a boundary unless `due` has done so for this step."""
        if not self._due_called:
            self._pass_boundary()
        self._due_called = False
        return self.stopping

    def close(self) -> None:
        """Takes leave of the board: from here on no step is missed."""
        self._board.follow()
        if self._boundary:
            self._board.leave(self._local_rank)
        self._board.close()

    def _pass_boundary(self) -> None:
        self._boundary += 1
        self._board.follow()
        self._board.write_row(
            self._local_rank, rank=self._rank, attempt=self._attempt, boundary=self._boundary, step=self._step
        )
        self._wait_at_gate()
        stop_at = self._board.stop_at
        self.stopping = self._board.attempt == self._attempt and 0 < stop_at <= self._boundary

    def _wait_at_gate(self) -> None:
        deadline = time.monotonic() + self._gate_s
        while 0 < (gate := self._board.gate) <= self._boundary and gate != self._ignored_gate:
            if time.monotonic() > deadline:
                log.warning(
                    "rank %d: the agents have not decided within %g s whether to stop at boundary %d; going on",
                    self._rank, self._gate_s, gate,
                )  # fmt: skip
                self._ignored_gate = gate
            time.sleep(_GATE_POLL_S)
