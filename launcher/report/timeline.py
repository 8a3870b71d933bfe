"""The phases of a job, and the seconds in each class of time, from its events alone.

The classes have the names of ETTR's literature. Each has the badput type of ml-goodput to which it belongs, so that
figures can be compared with those of other systems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.core.faults import FaultKind
from launcher.core.outcomes import AttemptOutcome

Event = Mapping[str, Any]

TRAINING = "training"  # a phase, which is productive but for lost steps and saves that hold training up
PRODUCTIVE = "productive"
LOST_STEPS = "lost_steps"
SAVE_STALL = "save_stall"


@dataclass(frozen=True, kw_only=True)
class TimeClass:
    """A class of time.

    Attributes:
        meaning: in one phrase.
        badput_type: the type of ml-goodput; None for time that counts.
    """

    meaning: str
    badput_type: str | None


CLASSES: Mapping[str, TimeClass] = {
    PRODUCTIVE: TimeClass(meaning="steps that were kept", badput_type=None),
    LOST_STEPS: TimeClass(
        meaning="steps that were lost with a fault", badput_type="WASTED_PROGRESS_FROM_DISRUPTION"
    ),
    SAVE_STALL: TimeClass(meaning="saves that held training up", badput_type="UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"),
    "start": TimeClass(meaning="from a start of the job to its first step", badput_type="PROGRAM_STARTUP"),
    "restore": TimeClass(
        meaning="the agents read and rebuild the state", badput_type="UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"
    ),
    "recovery": TimeClass(
        meaning="from a fault to the next step, without the restore",
        badput_type="INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    ),
    "hang": TimeClass(meaning="workers that ran and made no step, until it was noticed", badput_type="OTHER"),
    "resize": TimeClass(
        meaning="from one size to the first step of the next", badput_type="ELASTIC_REINITIALIZATION"
    ),
    "queue": TimeClass(meaning="from the end of an allocation to the start of the next", badput_type="OTHER"),
    "unmeasured": TimeClass(meaning="workers that report no steps", badput_type="OTHER"),
    "end": TimeClass(meaning="after the last step", badput_type="OTHER"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Period:
    """A period of the job: "training", or a class of time. Times are in seconds since the epoch."""

    kind: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class Timeline:
    """Folds events into phases that follow each other without a gap. Call add() for each event in order."""

    def __init__(self) -> None:
        self._phases: list[Period] = []
        self._kind: str | None = None  # of the phase that goes on; None before the start and after the end
        self._since_s = 0.0
        self._last_s = 0.0
        self._workers_s: float | None = None
        self._has_steps = False

    def add(self, event: Event) -> None:
        name, time_s = event["event"], max(event["time"], self._last_s)
        if self._kind is None and name != "job_end":
            self._kind, self._since_s = ("queue", self._last_s) if self._last_s else ("start", time_s)
        handler = getattr(self, f"_on_{name}", None)
        if handler is not None:
            handler(event, time_s)
        self._last_s = time_s

    def phases(self, now_s: float | None = None) -> list[Period]:
        """The phases up to now; up to the last event if `now_s` is None."""
        if self._kind is None:
            return list(self._phases)
        until_s = max(self._last_s, now_s or 0.0)
        return [*self._phases, *self._parts(until_s)]

    def _turn(self, kind: str | None, time_s: float) -> None:
        """A phase ends and another one begins."""
        if self._kind is not None:
            self._phases += self._parts(time_s)
        self._kind, self._since_s, self._workers_s = kind, max(time_s, self._since_s), None

    def _parts(self, until_s: float) -> list[Period]:
        """The phase that goes on, up to a time. Workers that never report a step are a phase of their own."""
        cuts = [(str(self._kind), self._since_s)]
        if self._workers_s is not None and not self._has_steps and self._kind != TRAINING:
            cuts.append(("unmeasured", self._workers_s))
        ends = [start_s for _, start_s in cuts[1:]] + [until_s]
        parts = (Period(kind=k, start_s=s, end_s=end_s) for (k, s), end_s in zip(cuts, ends, strict=True))
        return [part for part in parts if part.seconds > 0]

    def _on_job_start(self, event: Event, time_s: float) -> None:
        if self._last_s:
            if self._kind != "queue":  # nothing recorded the end of the allocation before
                self._turn("queue", self._last_s)
            self._turn("start", time_s)

    def _on_workers_started(self, event: Event, time_s: float) -> None:
        self._workers_s = time_s

    def _on_first_step(self, event: Event, time_s: float) -> None:
        self._has_steps = True
        self._turn(TRAINING, time_s)

    def _on_restore(self, event: Event, time_s: float) -> None:
        """The restore may go on while workers start, so it is cut out of the phase that goes on."""
        kind, workers_s = self._kind, self._workers_s
        if kind is None or kind == TRAINING:
            return
        self._turn("restore", max(self._since_s, time_s - (event.get("seconds") or 0.0)))
        self._turn(kind, time_s)
        self._workers_s = None if workers_s is None else time_s

    def _on_fault(self, event: Event, time_s: float) -> None:
        if self._kind == TRAINING:
            after = "resize" if event.get("kind") == FaultKind.PREEMPTED else "recovery"
            stopped_s = max(self._since_s, time_s - (event.get("detect") or 0.0))
            self._turn("hang" if event.get("kind") == FaultKind.HANG else after, stopped_s)
            self._turn(after, time_s)
        elif self._workers_s is not None and not self._has_steps:
            self._turn("recovery", time_s)

    def _on_attempt_end(self, event: Event, time_s: float) -> None:
        match event.get("outcome"):
            case AttemptOutcome.RESIZED:
                self._turn("resize", time_s)
            case AttemptOutcome.STOPPED:
                self._turn("queue", time_s)
            case AttemptOutcome.FAULT:
                if self._kind == TRAINING:
                    self._turn("recovery", time_s)
            case _:
                self._turn("end", time_s)

    def _on_job_end(self, event: Event, time_s: float) -> None:
        self._turn(None, time_s)


def seconds_by_class(phases: Sequence[Period], productive_s: float | None, stall_s: float) -> dict[str, float]:
    """The seconds in each class, in the order of CLASSES. Together they are the time from the first to the last phase.

    Args:
        phases: the phases of the job.
        productive_s: seconds in steps that were kept; None if this is not known. Then no step counts as lost.
        stall_s: seconds for which saves have held training up.
    """
    found: dict[str, float] = {}
    for phase in phases:
        found[phase.kind] = found.get(phase.kind, 0.0) + phase.seconds
    training_s = found.pop(TRAINING, 0.0)
    if training_s:
        left_s = max(0.0, training_s - stall_s)
        found[PRODUCTIVE] = left_s if productive_s is None else min(left_s, productive_s)
        found[LOST_STEPS] = left_s - found[PRODUCTIVE]
        found[SAVE_STALL] = training_s - left_s
    return {name: round(found[name], 3) for name in CLASSES if found.get(name, 0.0) >= 0.0005}
