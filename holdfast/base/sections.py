"""The time of this process's steps, by section: data, communication, and the rest, which is compute.

Nothing is measured until `measure()` is called, which the launcher's worker does. Until then a section costs the call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import TracebackType
from typing import Literal, get_args

SectionName = Literal["data", "compute", "communication"]
SECTIONS: tuple[SectionName, ...] = get_args(SectionName)

_COMPUTE = SECTIONS.index("compute")


class StepTimes:
    """Divides the time of one thread among the sections, so that the parts of a step add up to the step.

    The thread is in compute where it is in no other section. A section within another one interrupts it.

    Args:
        finished: called at the end of each step, with its nanoseconds in each of SECTIONS.
    """

    def __init__(self, finished: Callable[[int, int, int], None]) -> None:
        self._finished = finished
        self._thread = threading.get_ident()
        self._spent_ns = [0] * len(SECTIONS)
        self._outer: list[int] = []  # the sections around the present one
        self._now_in = _COMPUTE
        self._since_ns = perf_counter_ns()
        self._has_begun = False

    def enter(self, section: int) -> bool:
        """This thread enters a section, by its index in SECTIONS. False in another thread, which does not count."""
        if threading.get_ident() != self._thread:
            return False
        self._charge()
        self._outer.append(self._now_in)
        self._now_in = section
        return True

    def leave(self) -> None:
        """This thread leaves the section that it has entered last."""
        if threading.get_ident() == self._thread and self._outer:
            self._charge()
            self._now_in = self._outer.pop()

    def finish_step(self) -> None:
        """A step ends here. What came before the first end is no step."""
        if threading.get_ident() != self._thread:
            return
        self._charge()
        if self._has_begun:
            self._finished(*self._spent_ns)
        self._has_begun = True
        self._spent_ns = [0] * len(SECTIONS)

    def _charge(self) -> None:
        now_ns = perf_counter_ns()
        self._spent_ns[self._now_in] += now_ns - self._since_ns
        self._since_ns = now_ns


class Section:
    """A context manager around a section's code. It may be used again, and within itself."""

    __slots__ = ("_index",)

    def __init__(self, index: int) -> None:
        self._index = index

    def enter(self) -> bool:
        """Begins the section. False if it is not measured; then there is no `leave`."""
        return _times is not None and _times.enter(self._index)

    def leave(self) -> None:
        """Ends the section."""
        if _times is not None:
            _times.leave()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()


DATA, COMPUTE, COMMUNICATION = _all = tuple(map(Section, range(len(SECTIONS))))
by_name: Mapping[str, Section] = dict(zip(SECTIONS, _all, strict=True))

_times: StepTimes | None = None


def measure(finished: Callable[[int, int, int], None]) -> None:
    """From now on, measure the steps of this thread; see StepTimes. Processes that it forks are not measured."""
    global _times
    _times = StepTimes(finished)
    os.register_at_fork(after_in_child=stop)


def finish_step() -> None:
    """A step ends here, if steps are measured."""
    if _times is not None:
        _times.finish_step()


def stop() -> None:
    """From now on, measure nothing."""
    global _times
    _times = None
