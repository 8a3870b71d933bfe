"""A rate limit on this process's writes to a tier, which leaves bandwidth of a link or disk to training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Throttle:
    """A byte budget that fills at a constant rate. All threads that write to a tier share it."""

    def __init__(
        self,
        bytes_per_s: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        on_write: Callable[[int], object] = lambda nbytes: None,
    ) -> None:
        """
        Args:
            bytes_per_s: the rate; None: no limit.
            on_write: called with the number of bytes before each write.
        """
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._on_write = on_write
        self._free_s = 0.0  # time at which the budget for all bytes so far is filled
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        """Returns when `nbytes` more may be written."""
        self._on_write(nbytes)
        if self._bytes_per_s is None:
            return
        with self._lock:
            now = self._clock()
            start = max(now, self._free_s)
            self._free_s = start + nbytes / self._bytes_per_s
        if start > now:
            self._sleep(start - now)
