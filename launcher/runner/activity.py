"""Detects whether a node's workers do anything: write output, or use CPU time."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.base.processes import cpu_ticks

# Threads that only wait (NCCL's watchdog, a heartbeat) use much less; a worker that computes uses much more.
BUSY_SHARE = 0.05
_SAMPLE_S = 1.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Activity:
    """Counts the looks at which the workers have done something since the previous look.

    Args:
        ticks: CPU time used by a process, in clock ticks; None if it has ended.
        clock: monotonic time in seconds.

    Attributes:
        count: the number of such looks.
        has_ended: whether a worker has ended.
    """

    def __init__(
        self, *, ticks: Callable[[int], int | None] = cpu_ticks, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ticks = ticks
        self._clock = clock
        self._logs: tuple[Path, ...] = ()
        self._used: dict[int, int] = {}
        self._log_bytes = 0
        self._looked_s = 0.0
        self.count = 0
        self.has_ended = False

    def follow(self, pids: Iterable[int], logs: Iterable[Path]) -> None:
        """Starts again with the workers of an attempt."""
        self._logs = tuple(logs)
        self._used = {pid: self._ticks(pid) or 0 for pid in pids}
        self._log_bytes = 0
        self._looked_s = self._clock()
        self.count += 1
        self.has_ended = False

    def look(self) -> int:
        """Looks at most once a second and returns the count. Blocks while the logs' file system hangs."""
        elapsed_s = self._clock() - self._looked_s
        if elapsed_s < _SAMPLE_S:
            return self.count
        self._looked_s += elapsed_s
        used_before = self._used
        ticks = {pid: self._ticks(pid) for pid in used_before}
        used = used_before | {pid: count for pid, count in ticks.items() if count is not None}
        busiest = max((used[pid] - before for pid, before in used_before.items()), default=0)
        log_bytes = self._written()
        if self._used is not used_before:  # meanwhile another attempt has begun
            return self.count
        self.has_ended = None in ticks.values()
        self.count += busiest > BUSY_SHARE * _TICKS_PER_S * elapsed_s or log_bytes != self._log_bytes
        self._used, self._log_bytes = used, log_bytes
        return self.count

    def _written(self) -> int:
        total = 0
        for log in self._logs:
            with contextlib.suppress(OSError):
                total += log.stat().st_size
        return total
