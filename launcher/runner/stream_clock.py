"""The time of a worker's steps on an accelerator, where the host runs ahead of the work that it queues.

At each border of a section an event is recorded in the stream in which the script computes. What lies between two
events is then a section's time on the device: a collective's wait for the other ranks, which blocks the stream and not
the host; the pause in which the stream is empty because the DataLoader is late; or work. The events are read in later
steps, once the device has passed them. Nobody waits for them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.base.sections import SECTIONS, Finished

MOST_MARKS = 8192  # that the device has not passed yet; a step with more is told with fewer sections
_NS_A_MS = 1e6

log = logging.getLogger(__name__)


class _Mark(NamedTuple):
    """An event, the section that ends there, and whether the step does."""

    event: Any
    section: int
    ends_step: bool


class StreamClock:
    """Measures the sections of one thread in the stream in which its steps end.

    Args:
        device: the module of the accelerator, for example torch.cuda.
        finished: called for each step that the device has passed, with its nanoseconds in each of SECTIONS.
        failed: called if the device takes no events, or has an error. It is to end the measurement.
    """

    def __init__(self, device: Any, finished: Finished, failed: Callable[[], None]) -> None:
        self._device = device
        self._finished = finished
        self._failed = failed
        self._is_capturing = getattr(device, "is_current_stream_capturing", lambda: False)
        self._stream: Any = None  # in which the last step ended
        self._marks: deque[_Mark] = deque()
        self._free: list[Any] = []  # events that can be recorded again
        self._last: Any = None  # the newest event that was read
        self._spent_ms = [0.0] * len(SECTIONS)

    def charge(self, section: int) -> None:
        """Work of other streams is not the script's own: FSDP's gathers, copies that run ahead."""
        if self._stream is not None and len(self._marks) < MOST_MARKS:
            with self._measuring():
                self._mark(section, ends_step=False)

    def finish_step(self, section: int) -> None:
        with self._measuring():
            self._mark(section, ends_step=True)
            self._read()

    @contextlib.contextmanager
    def _measuring(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of the script's own work too, which the script meets at its next call
            log.warning("steps are not measured any more: %s", str(error).partition("\n")[0])
            self._failed()

    def _mark(self, section: int, *, ends_step: bool) -> None:
        if self._is_capturing():  # the events of a graph have no time
            return
        stream = self._device.current_stream()
        if ends_step:
            self._stream = stream
        elif stream != self._stream:
            return
        event = self._free.pop() if self._free else self._device.Event(enable_timing=True)
        event.record(stream)
        self._marks.append(_Mark(event, section, ends_step))

    def _read(self) -> None:
        if self._is_capturing():
            return
        while self._marks and self._marks[0].event.query():
            mark = self._marks.popleft()
            if self._last is not None:
                self._spent_ms[mark.section] += self._last.elapsed_time(mark.event)
                self._free.append(self._last)
            if mark.ends_step:
                if self._last is not None:  # the first step's beginning is not known
                    self._finished(*(round(part * _NS_A_MS) for part in self._spent_ms))
                self._spent_ms = [0.0] * len(SECTIONS)
            self._last = mark.event
