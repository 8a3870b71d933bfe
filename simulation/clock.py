"""Simulated time: one heap of events."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

EPOCH_S = 1_700_000_000.0  # at the beginning


class Clock:
    """Runs callbacks in the order of their times; those of one time in the order in which they were added.

    Attributes:
        now: seconds since the beginning.
    """

    __slots__ = ("_count", "_heap", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, at_s: float, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at_s if at_s > self.now else self.now, self._count, call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, call, args))

    def run(self, until_s: float, is_over: Callable[[], bool]) -> str:
        """Runs events until it is over; returns "over", "late" (beyond `until_s`) or "idle" (no event is left)."""
        heap, pop = self._heap, heapq.heappop
        while heap:
            if is_over():
                return "over"
            at_s, _, call, args = pop(heap)
            if at_s > until_s:
                return "late"
            self.now = at_s
            call(*args)
        return "over" if is_over() else "idle"
