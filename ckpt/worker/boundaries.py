"""The steps that are saved, and the step boundary at which all ranks stop. No collective: one look at shared memory."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ckpt.memory.board import SECTIONS, Board
from ckpt.worker import loaded

_GATE_POLL_S = 0.001

log = logging.getLogger(__name__)


class Cadence:
    """Counts step boundaries on the board and reads the agents' decision there; see `ckpt.memory.board`.

    The first call for a step passes a boundary. Further calls for the same step have no effect.
    """

    def __init__(
        self,
        board: Board,
        *,
        every_steps: Sequence[int],
        rank: int,
        local_rank: int,
        attempt: int,
        gate_s: float,
        auto_from: int = 0,
        modules: Path | None = None,
    ) -> None:
        """
        Args:
            auto_from: with `every_steps: auto`, the number of steps between saves until the agents have agreed on one;
                0: they agree on none.
        """
        self._board = board
        self._every_steps = tuple(every_steps)
        self._auto_from = auto_from
        self._auto_steps = auto_from
        self._rank = rank
        self._local_rank = local_rank
        self._attempt = attempt
        self._gate_s = gate_s
        self._modules = modules
        self._boundary = 0
        self._section = SECTIONS[0]
        self._step: int | None = None
        self._is_named = False  # whether the call that passed the last boundary named its step
        self._ignored_gate = 0
        self.stopping = False
        self._saved: int | None = None

    def should_save(self, step: int) -> bool:
        """Whether to save this step: a configured cadence is due, or all ranks stop here; and it has not been saved."""
        self._pass_boundary(step)
        if step == self._saved:
            return False
        auto = (self._auto_steps,) if self._auto_steps else ()
        return self.stopping or any(step % every == 0 for every in (*self._every_steps, *auto))

    def saved(self, step: int | None) -> None:
        """The script has saved a step, or loaded one, after which it may save any."""
        self._saved = step

    def should_stop(self, step: int) -> bool:
        self._pass_boundary(step)
        return self.stopping

    def should_stop_here(self) -> bool:
        """Whether all ranks stop at the boundary that a call with a step has just passed, or else at a new one."""
        if not self._is_named:
            self._cross(self._step or 0)
        self._is_named = False
        return self.stopping

    @contextlib.contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Tells the launcher what this rank does meanwhile; one of SECTIONS."""
        before = self._section
        self._enter(name)
        try:
            yield
        finally:
            self._enter(before)

    def close(self) -> None:
        """Marks this worker's row as closed: it passes no further boundaries."""
        self._board.follow()
        if self._boundary:
            self._board.leave(self._local_rank)
        self._board.close()

    def _enter(self, section: str) -> None:
        self._section = section
        if self._boundary:
            self._board.follow()
            self._board.set_section(self._local_rank, section)

    def _pass_boundary(self, step: int) -> None:
        if step != self._step:
            self._step = step
            self._is_named = True
            self._cross(step)

    def _cross(self, step: int) -> None:
        self._boundary += 1
        if self._boundary == loaded.BOUNDARY and self._modules is not None:
            self._record_modules(self._modules)
        self._board.follow()
        self._board.write_row(
            self._local_rank, rank=self._rank, attempt=self._attempt, boundary=self._boundary, step=step
        )
        self._board.set_section(self._local_rank, self._section)  # the row may be of another attempt, or board
        self._wait_at_gate()
        stop_at = self._board.stop_at
        self.stopping = self._board.attempt == self._attempt and 0 < stop_at <= self._boundary
        if self._auto_from:
            self._auto_steps = self._board.every_steps(self._boundary) or self._auto_from

    @staticmethod
    def _record_modules(path: Path) -> None:
        try:
            loaded.record_modules(path)
        except OSError as error:
            log.warning("%s: %s: a restart imports the script's modules again", path, error.strerror)

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


def leave_sigterm_to_the_stop() -> None:
    """Removes the script's own SIGTERM handler, which would run on each rank at a different step."""
    handler = signal.getsignal(signal.SIGTERM)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        name = getattr(handler, "__qualname__", repr(handler))
        log.warning("the SIGTERM handler %s is removed: all ranks stop at one step, by should_stop(step)", name)
