"""The recovery from each fault and its duration, computed from the events alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The recovery from one fault. Times are in seconds after the fault, or after the last heartbeat before it.

    Attributes:
        node: the node at fault.
        kind: the kind of the fault; see launcher.core.faults.
        rung: how the next attempt started: workers, spare or requeue.
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
    step_resumed: int | None = None
    restored_from: str | None = None
    detect_s: float | None = None
    workers_s: float | None = None
    next_step_s: float | None = None

    def to_mapping(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def recoveries(events: Iterable[Mapping[str, Any]], failed_at: Mapping[str, float] | None = None) -> list[Recovery]:
    """The recoveries of a job, oldest first. Each lasts from a fault to the next finished step.

    Args:
        events: the job's events in order.
        failed_at: from node to the time of its failure (s since the epoch), if known, as in tests.
    """
    found: list[Recovery] = []
    fault: Mapping[str, Any] | None = None
    origin_s = started_s = 0.0
    step_lost = 0
    for event in events:
        kind = event["event"]
        under_way = bool(found) and found[-1].next_step_s is None
        if kind == "fault" and fault is None and not under_way:
            fault, step_lost = event, event.get("step") or 0
            origin_s = (failed_at or {}).get(event.get("node") or "", event["time"] - (event.get("detect") or 0.0))
        elif kind == "attempt_end" and fault is not None:  # only this event has the newest finished step for certain
            step_lost = max(step_lost, event.get("step") or 0)
        elif kind == "attempt_start":
            started_s = event["time"]
            if fault is not None:
                found.append(_begun(fault, event, origin_s, step_lost))
                fault = None
            elif under_way:  # a further fault during the recovery: the same recovery, with the last attempt's rung
                found[-1] = dataclasses.replace(found[-1], rung=event["rung"], workers_s=None)
        elif not under_way:  # later attempts, as after a resize, are no part of it
            continue
        elif kind == "restore":
            found[-1] = dataclasses.replace(found[-1], step_resumed=event["step"], restored_from=event["tier"])
        elif kind == "workers_started":
            found[-1] = dataclasses.replace(found[-1], workers_s=started_s + event["seconds"] - origin_s)
        elif kind == "first_step":
            found[-1] = dataclasses.replace(found[-1], next_step_s=started_s + event["seconds"] - origin_s)
    return found


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


def _begun(fault: Mapping[str, Any], attempt: Mapping[str, Any], origin_s: float, step_lost: int) -> Recovery:
    return Recovery(
        node=fault.get("node"),
        kind=fault["kind"],
        rung=attempt["rung"],
        step_lost=step_lost,
        detect_s=fault["time"] - origin_s,
    )
