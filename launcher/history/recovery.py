"""The recovery from each fault and its duration, computed from the events alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The recovery from one fault. Times are in seconds after the fault, or after the last heartbeat before it.

    Attributes:
        node: the node at fault.
        kind: the kind of the fault; see launcher.core.faults.
        rung: how the next attempt started, as workers, spare or requeue; empty before it has.
        fault_s: time of the fault, in seconds since the epoch.
        step_lost: the newest step that was finished before the fault.
        step_resumed: the restored step; 0 if none was restored.
        restored_from: the tier of the restored step.
        detect_s: until the supervisor detected the fault.
        workers_s: until the next attempt's workers had started.
        next_step_s: until the next step was finished.
    """

    node: str | None
    kind: str
    rung: str
    step_lost: int
    fault_s: float = 0.0
    step_resumed: int | None = None
    restored_from: str | None = None
    detect_s: float | None = None
    workers_s: float | None = None
    next_step_s: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(kw_only=True)
class RecoveryFold:
    """Folds events into recoveries. Each lasts from a fault to the next finished step.

    Attributes:
        found: the recoveries, oldest first.
        pending: a fault after which no attempt has begun yet, with an empty rung; None if there is none.
        failed_at: from node to the time of its failure (s since the epoch), if known, as in tests.
    """

    found: list[Recovery] = field(default_factory=list)
    pending: Recovery | None = None
    failed_at: Mapping[str, float] = field(default_factory=dict)
    started_s: float = 0.0

    def add(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        under_way = bool(self.found) and self.found[-1].next_step_s is None
        if kind == "fault" and event.get("attempt", 0) is None:  # the node does not train: nothing recovers
            return
        if kind == "fault" and self.pending is None and not under_way:
            self.pending = self._noticed(event)
        elif kind == "attempt_end" and self.pending is not None:  # only this event has the last step for certain
            self.pending = replace(self.pending, step_lost=max(self.pending.step_lost, event.get("step") or 0))
        elif kind == "attempt_start":
            self.started_s = event["time"]
            if self.pending is not None:
                self.found.append(replace(self.pending, rung=str(event.get("rung"))))
                self.pending = None
            elif under_way:  # a further fault during the recovery: the same recovery, with the last attempt's rung
                self.found[-1] = replace(self.found[-1], rung=str(event.get("rung")), workers_s=None)
        elif under_way:  # later attempts, as after a resize, are no part of it
            self.found[-1] = self._continued(self.found[-1], event)

    def known(self) -> list[Recovery]:
        """The recoveries, and the fault after which no attempt has begun yet."""
        return self.found if self.pending is None else [*self.found, self.pending]

    def _noticed(self, fault: Mapping[str, Any]) -> Recovery:
        node = fault.get("node")
        fault_s = self.failed_at.get(node or "", fault["time"] - (fault.get("detect") or 0.0))
        return Recovery(
            node=node,
            kind=str(fault.get("kind")),
            rung="",
            fault_s=fault_s,
            step_lost=fault.get("step") or 0,
            detect_s=fault["time"] - fault_s,
        )

    def _continued(self, recovery: Recovery, event: Mapping[str, Any]) -> Recovery:
        since_fault_s = self.started_s + (event.get("seconds") or 0.0) - recovery.fault_s
        match event.get("event"):
            case "restore":
                return replace(recovery, step_resumed=event.get("step"), restored_from=event.get("tier"))
            case "workers_started":
                return replace(recovery, workers_s=since_fault_s)
            case "first_step":
                return replace(recovery, next_step_s=since_fault_s)
            case _:
                return recovery


def recoveries(events: Iterable[Mapping[str, Any]], failed_at: Mapping[str, float] | None = None) -> list[Recovery]:
    """The recoveries of a job, oldest first.

    Args:
        events: the job's events in order.
        failed_at: from node to the time of its failure (s since the epoch), if known, as in tests.
    """
    fold = RecoveryFold(failed_at=failed_at or {})
    for event in events:
        fold.add(event)
    return fold.found


def cold_start_s(events: Iterable[Mapping[str, Any]], submitted_at: float | None = None) -> float | None:
    """Seconds from the job's submission, or from its start, to its first finished step; None before that step."""
    start = submitted_at
    attempt_start = 0.0
    for event in events:
        if event["event"] == "job_start" and start is None:
            start = event["time"]
        elif event["event"] == "attempt_start":
            attempt_start = event["time"]
        elif event["event"] == "first_step" and start is not None:
            return attempt_start + event["seconds"] - start
    return None
