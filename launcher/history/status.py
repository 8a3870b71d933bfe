"""The state of a job: a pure fold over the events in events.jsonl."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from launcher.core.faults import PREEMPTED
from launcher.history.size import BoostersNow, LostTime, Size

Event = Mapping[str, Any]

_LAST_EVENTS = 8
_RATE_WINDOW = 8
_QUIET = ("commit", "own_checkpoint", "node_ready")  # too frequent for the list of last events


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """One job's state.

    Attributes:
        state: "pending", "starting", "running" (the workers run and have reported no step yet), "training",
            "recovering", "resizing", "stopping", "requeued", or once ended the outcome: "done", "halted", "user_error",
            "no_progress", "too_few_nodes", "cancelled", "fabric", "internal".
        reason: the cause, where the state has one.
        stop: a user's request to save and end, in words; None if there is none.
        run_id: the run's identity through all its requeues.
        cluster: "slurm" or "local".
        attempt: number of the newest attempt, from 0; None before the first.
        nodes: the newest attempt's active nodes, in node-rank order.
        spares: further warm nodes.
        out: nodes that are out of use, with the reasons.
        size: why the job has its number of nodes, and what it waits for; None for a job with a fixed size.
        elastic: the same as fields: requested, boosters with state, reason and nodes, ...
        faults: number of faults so far. The preemption of a booster is not a fault.
        step: the newest step that is known to be finished; 0 before the first.
        steps_per_s: speed over the last few reports; None if it is not known.
        committed: the newest committed step of each tier.
        failed_saves: number of saves that did not reach a tier, including memory.
        unsaved: for each tier that lacks its newest save, the reason.
        ettr: effective training time ratio: the share of the wall time since the first start that went into steps that
            were kept. Time in the queue, starts, recoveries, and steps that were lost with a fault and repeated lower
            it. None before the first step.
        lost_s: seconds without training by cause: "start", "resize", "requeue", or the kind of a fault.
        seconds: wall time in seconds from the first start to now, or to the end.
        events: the last events, oldest first, without frequent ones.
    """

    state: str = "pending"
    reason: str | None = None
    stop: str | None = None
    run_id: str | None = None
    cluster: str | None = None
    attempt: int | None = None
    nodes: tuple[str, ...] = ()
    spares: tuple[str, ...] = ()
    out: Mapping[str, str] = field(default_factory=dict)
    size: str | None = None
    elastic: BoostersNow | None = None
    faults: int = 0
    step: int = 0
    steps_per_s: float | None = None
    committed: Mapping[str, int] = field(default_factory=dict)
    failed_saves: int = 0
    unsaved: Mapping[str, str] = field(default_factory=dict)
    ettr: float | None = None
    lost_s: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    events: tuple[Event, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """The status as JSON data."""
        return asdict(self)


def status_of(events: Iterable[Event], now_s: float | None = None) -> JobStatus:
    """Fold a job's events into its status.

    Args:
        events: the events in the order in which they were written.
        now_s: the current time in seconds since the epoch; None: read the clock.
    """
    history = StatusFold()
    for event in events:
        history.add(event)
    return history.status(now_s)


class StatusFold:
    """The fold for readers that follow a running job: add() each event, call status() at any time."""

    def __init__(self) -> None:
        self._status = JobStatus()
        self._start_s: float | None = None
        self._end_s: float | None = None
        self._spans: list[_Span] = []
        self._training = False
        self._size = Size()
        self._lost_time = LostTime()
        self._failed_saves: set[tuple[Any, ...]] = set()  # a set, because several nodes may report the same save
        self._missing: dict[str, int] = {}  # from tier to the newest step that did not reach it
        self._recent: deque[Event] = deque(maxlen=_LAST_EVENTS)
        self._speed: deque[tuple[float, int]] = deque(maxlen=_RATE_WINDOW)

    def add(self, event: Event) -> None:
        """Add an event. Unknown events and keys are ignored."""
        if not isinstance(event.get("time"), int | float):
            return
        handler = getattr(self, f"_on_{event.get('event')}", None)
        if handler:
            handler(event)
        self._size.add(event)
        self._lost_time.add(event)
        if event.get("event") not in _QUIET:
            self._recent.append(event)

    def status(self, now_s: float | None = None) -> JobStatus:
        """The status after the last added event."""
        if self._start_s is None:
            return self._status
        now_s = time.time() if now_s is None else now_s
        end_s = now_s if self._end_s is None else self._end_s
        seconds = max(0.0, end_s - self._start_s)
        spans = self._spans
        if self._training and spans:
            spans = [*spans[:-1], replace(spans[-1], end_s=max(spans[-1].end_s, end_s))]
        elastic = None if self._end_s is not None else self._size.now()
        gained_s = sum(span.end_s - span.start_s for span in spans)
        return replace(
            self._status,
            ettr=min(1.0, gained_s / seconds) if spans and seconds else None,
            steps_per_s=self._steps_per_s(),
            size=None if elastic is None else elastic.text(),
            elastic=elastic,
            lost_s=self._lost_time.seconds(),
            seconds=seconds,
            events=tuple(self._recent),
        )

    def _steps_per_s(self) -> float | None:
        if not self._training or len(self._speed) < 2:
            return None
        (start_s, first), (end_s, last) = self._speed[0], self._speed[-1]
        return (last - first) / (end_s - start_s) if end_s > start_s and last > first else None

    def _set(self, **changes: Any) -> None:
        self._status = replace(self._status, **changes)

    def _reached(self, event: Event) -> None:
        """Update the finished step from an event of a training attempt."""
        step = event.get("step")
        if not isinstance(step, int) or not self._training:
            return
        if not self._speed or step > self._speed[-1][1]:
            self._speed.append((event["time"], step))
        span = self._spans[-1]
        self._spans[-1] = replace(span, end_step=max(span.end_step, step), end_s=max(span.end_s, event["time"]))
        self._set(step=max(self._status.step, step))

    def _go_on_from(self, step: int) -> None:
        """Continue from a restored step. Later steps are lost and do not count for ETTR."""
        self._training = False
        self._spans = [span.cut(step) for span in self._spans]

    def _stopped_training(self, event: Event) -> None:
        """Close the attempt's span at the time at which training stopped, which is before a fault's detection."""
        if self._training:
            self._reached(event)
            span = self._spans[-1]
            end_s = event["time"] - (event.get("detect") or 0.0)
            self._spans[-1] = replace(span, end_s=max(span.start_s, end_s))
        self._training = False

    def _on_job_start(self, event: Event) -> None:
        if self._start_s is None:
            self._start_s = event["time"]
        self._end_s = None
        self._training = False
        self._set(state="starting", reason=None, run_id=event.get("run_id"), cluster=event.get("cluster"))

    def _on_attempt_start(self, event: Event) -> None:
        self._speed.clear()
        state = "recovering" if event.get("attempt") else "starting"
        self._set(
            state=self._status.state if self._status.state == "resizing" else state,
            attempt=event.get("attempt"),
            nodes=tuple(event.get("nodes") or ()),
            spares=tuple(event.get("spares") or ()),
        )

    def _on_restore(self, event: Event) -> None:
        step = event.get("step") or 0
        self._go_on_from(step)
        self._set(step=step)

    def _on_workers_started(self, event: Event) -> None:
        self._set(state="running", reason=None)

    def _on_first_step(self, event: Event) -> None:
        step = event.get("step") or 1
        self._go_on_from(step - 1)
        self._spans.append(_Span(start_step=step - 1, end_step=step, start_s=event["time"], end_s=event["time"]))
        self._training = True
        self._set(state="training", reason=None, step=step)
        self._reached(event)

    def _on_commit(self, event: Event) -> None:
        self._reached(event)
        tier, step = event.get("tier"), event.get("step")
        if tier and isinstance(step, int):
            self._set(committed={**self._status.committed, tier: step})
            if step >= self._missing.get(tier, step):
                self._missing.pop(tier, None)
                self._set(unsaved={name: why for name, why in self._status.unsaved.items() if name != tier})

    def _on_problem(self, event: Event) -> None:
        if event.get("failed"):
            self._failed_saves.add((event.get("attempt"), event.get("step"), event["failed"]))
            self._set(failed_saves=len(self._failed_saves))
            tier, step = event["failed"], event.get("step")
            if isinstance(step, int) and step >= self._missing.get(tier, step):
                self._missing[tier] = step
                why = f"step {step}: {event.get('what')}: {' '.join(str(event.get('detail') or '').split())}"
                self._set(unsaved={**self._status.unsaved, tier: why})

    def _on_agents_lost(self, event: Event) -> None:
        self._set(reason="nothing is saved: the checkpoint agents were lost")

    def _on_agents_back(self, event: Event) -> None:
        self._set(reason=None)

    def _on_fault(self, event: Event) -> None:
        is_counted = event.get("kind") != PREEMPTED
        if event.get("attempt") is None and self._training:  # of a node or booster that does not train yet
            self._set(faults=self._status.faults + is_counted)
            return
        self._stopped_training(event)
        self._set(state="recovering", reason=event.get("reason"), faults=self._status.faults + is_counted)

    def _on_resize(self, event: Event) -> None:
        self._set(state="resizing", reason=f"{event.get('size')} to {event.get('to')} nodes: {event.get('reason')}")

    def _on_node_out(self, event: Event) -> None:
        node = str(event.get("node"))
        self._set(
            out={**self._status.out, node: event.get("reason") or "no reason given"},
            spares=tuple(spare for spare in self._status.spares if spare != node),
        )

    def _on_node_back(self, event: Event) -> None:
        node = str(event.get("node"))
        status = self._status
        is_spare = node not in (*status.nodes, *status.spares) and event.get("allocation") is None
        self._set(
            out={other: why for other, why in status.out.items() if other != node},
            spares=(*status.spares, node) if is_spare else status.spares,
        )

    def _on_stop_requested(self, event: Event) -> None:
        self._set(state="stopping", reason=event.get("reason"))

    def _on_attempt_end(self, event: Event) -> None:
        self._stopped_training(event)
        if event.get("outcome") == "stopped":
            self._set(state="requeued")

    def _on_job_end(self, event: Event) -> None:
        self._stopped_training(event)
        self._end_s = event["time"]
        step = event.get("step")
        self._set(
            state=event.get("outcome") or "internal",
            reason=event.get("reason"),
            step=step if isinstance(step, int) else self._status.step,
        )


@dataclass(frozen=True, kw_only=True)
class _Span:
    """A period of training: the steps after `start_step` up to `end_step`, and its time."""

    start_step: int
    end_step: int
    start_s: float
    end_s: float

    def cut(self, step: int) -> _Span:
        """The part of the period that still counts after training has continued from `step`."""
        if step >= self.end_step:
            return self
        if step <= self.start_step:
            return replace(self, end_step=self.start_step, end_s=self.start_s)
        share = (step - self.start_step) / (self.end_step - self.start_step)
        return replace(self, end_step=step, end_s=self.start_s + share * (self.end_s - self.start_s))
