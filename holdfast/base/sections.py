"""The time of this process's steps, by section: data, communication, and the rest, which is compute.

Nothing is measured until `measure()` is called, which the launcher's worker does. Until then a section costs the call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from types import TracebackType
from typing import Literal, Protocol, TypeAlias, get_args

SectionName = Literal["data", "compute", "communication"]
SECTIONS: tuple[SectionName, ...] = get_args(SectionName)
Finished: TypeAlias = Callable[[int, int, int], None]

_COMPUTE = SECTIONS.index("compute")


class Clock(Protocol):
    """Measures how long a thread, or the work that it has queued on an accelerator, is in each section."""

    def charge(self, section: int) -> None:
        """The time since the last call was in this section, by its index in SECTIONS."""

    def finish_step(self, section: int) -> None:
        """The same, and a step ends here."""


class HostClock:
    """The time of the thread.

    Args:
        finished: called at the end of each step, with its nanoseconds in each of SECTIONS.
    """

    def __init__(self, finished: Finished) -> None:
        self._finished = finished
        self._spent_ns = [0] * len(SECTIONS)
        self._since_ns = perf_counter_ns()
        self._has_begun = False

    def charge(self, section: int) -> None:
        now_ns = perf_counter_ns()
        self._spent_ns[section] += now_ns - self._since_ns
        self._since_ns = now_ns

    def finish_step(self, section: int) -> None:
        self.charge(section)
        if self._has_begun:  # what came before the first end is no step
            self._finished(*self._spent_ns)
        self._has_begun = True
        self._spent_ns = [0] * len(SECTIONS)


class StepTimes:
    """Divides the time of one thread among the sections, so that the parts of a step add up to the step.

    The thread is in compute where it is in no other section. A section within another one interrupts it.

    Attributes:
        clock: measures the time in each section.
        acts_for_it: whether the calling thread does the measured thread's work, while that one waits for it.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.acts_for_it: Callable[[], bool] = lambda: False
        self._thread = threading.get_ident()
        self._outer: list[int] = []  # the sections around the present one
        self._now_in = _COMPUTE

    def enter(self, section: int) -> bool:
        """This thread enters a section, by its index in SECTIONS. False in another thread, which does not count."""
        if not self._counts():
            return False
        self.clock.charge(self._now_in)
        self._outer.append(self._now_in)
        self._now_in = section
        return True

    def leave(self) -> None:
        """This thread leaves the section that it has entered last."""
        if self._outer and self._counts():
            self.clock.charge(self._now_in)
            self._now_in = self._outer.pop()

    def finish_step(self) -> None:
        """A step ends here."""
        if self._counts():
            self.clock.finish_step(self._now_in)

    def _counts(self) -> bool:
        return threading.get_ident() == self._thread or self.acts_for_it()


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


def measure(finished: Finished) -> StepTimes:
    """From now on, measure the steps of this thread. Processes that it forks are not measured."""
    global _times
    _times = StepTimes(HostClock(finished))
    os.register_at_fork(after_in_child=stop)
    return _times


def finish_step() -> None:
    """A step ends here, if steps are measured."""
    if _times is not None:
        _times.finish_step()


def stop() -> None:
    """From now on, measure nothing."""
    global _times
    _times = None
