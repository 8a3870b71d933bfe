"""A rate limit on what this process writes to a tier, so that a flush leaves the rest of a link or disk to training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Throttle:
    """Hands out a byte budget that fills at a constant rate; shared by all threads that write to one tier."""

    def __init__(
        self,
        bytes_per_s: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        told: Callable[[int], object] = lambda nbytes: None,
    ) -> None:
        """
        Args:
            bytes_per_s: the rate; None is no limit.
            clock: seconds that never go back.
            sleep: waits so many seconds.
            told: of every so many bytes that are about to be written.
        """
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._told = told
        self._free_s = 0.0  # when what has been handed out will have been paid for
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        """Returns when `nbytes` more may be written."""
        self._told(nbytes)
        if self._bytes_per_s is None:
            return
        with self._lock:
            now = self._clock()
            start = max(now, self._free_s)
            self._free_s = start + nbytes / self._bytes_per_s
        if start > now:
            self._sleep(start - now)
