"""The cost of each resize, computed from the events alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from launcher.core.outcomes import AttemptOutcome
from launcher.core.rungs import Rung

Event = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ResizeCost:
    """One resize. Times are in seconds since the epoch; None if an event is missing.

    Attributes:
        attempt: number of the first attempt with the new size.
        rung: grow or shrink.
        size, to: number of nodes before and after.
        stopped_s: training stopped: the step that all ranks agreed on was finished, or a node was lost.
        ended_s: all processes of the previous attempt had ended.
        met_s: the new attempt's agents were connected.
        planned_s: the agents had agreed on a step and on the sources of its shards.
        started_s: the new attempt's workers had started.
        trained_s: the first step of the new size was finished.
    """

    attempt: int
    rung: str
    size: int
    to: int
    stopped_s: float
    ended_s: float
    met_s: float | None = None
    planned_s: float | None = None
    started_s: float | None = None
    trained_s: float | None = None

    @property
    def seconds(self) -> float | None:
        """Seconds without training; None before the first step with the new size."""
        return None if self.trained_s is None else max(0.0, self.trained_s - self.stopped_s)


@dataclass(kw_only=True)
class TrainingStop:
    """Finds the time at which an attempt stopped training, which is before its end.

    Attributes:
        saved: the newest step in memory, and the time at which its save began.
        fault_s: the time of the attempt's first fault.
    """

    saved: tuple[int, float] | None = None
    fault_s: float | None = None

    def add(self, event: Event) -> None:
        name = event.get("event")
        if name == "attempt_start":
            self.saved = self.fault_s = None
        elif name == "commit" and event.get("tier") == "memory" and isinstance(event.get("step"), int):
            self.saved = (event["step"], event["time"] - (event.get("seconds") or 0.0))
        elif name == "fault" and self.fault_s is None:
            self.fault_s = event["time"] - (event.get("detect") or 0.0)

    def at_s(self, end: Event) -> float:
        """The time at which the last step was finished or the fault came, for the event of the attempt's end.

        The save of the agreed step begins when the step ends. Without such a save it is the time of the attempt's end.
        """
        time_s: float = end["time"]
        if end.get("outcome") == AttemptOutcome.FAULT and self.fault_s is not None:
            return min(time_s, self.fault_s)
        if self.saved is not None and self.saved[0] == end.get("step"):
            return min(time_s, self.saved[1])
        return time_s


def resizes(events: Iterable[Event]) -> list[ResizeCost]:
    """The job's resizes, oldest first. After a fault, the next attempt with the same size continues the same resize."""
    found: list[ResizeCost] = []
    stop, nodes = TrainingStop(), 0
    stopped_s: float | None = None
    ended_s = started_s = 0.0
    for event in events:
        name = event["event"]
        if name == "attempt_end":
            ended_s = event["time"]
            stopped_s = stop.at_s(event) if stopped_s is None else stopped_s
        elif name == "attempt_start":
            started_s = event["time"]
            if event["rung"] in (Rung.GROW, Rung.SHRINK) and stopped_s is not None and len(event["nodes"]) != nodes:
                found.append(
                    ResizeCost(
                        attempt=event.get("attempt") or 0, rung=event["rung"], size=nodes, to=len(event["nodes"]),
                        stopped_s=stopped_s, ended_s=ended_s,
                    )
                )  # fmt: skip
            elif found and found[-1].trained_s is None:
                found[-1] = replace(found[-1], attempt=event.get("attempt") or 0, ended_s=ended_s)
            nodes = len(event["nodes"])
        elif name == "first_step":
            stopped_s = None
        if found and found[-1].trained_s is None:
            found[-1] = _with(found[-1], event, started_s)
        stop.add(event)
    return found


def _with(resize: ResizeCost, event: Event, started_s: float) -> ResizeCost:
    time_s, seconds = event["time"], event.get("seconds") or 0.0
    match event["event"]:
        case "restore":
            return replace(resize, met_s=time_s - seconds, planned_s=time_s)
        case "workers_started":
            return replace(resize, started_s=started_s + seconds)
        case "first_step":
            return replace(resize, trained_s=started_s + seconds)
        case _:
            return resize
