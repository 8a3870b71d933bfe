"""The state of a job: a pure fold over the events in events.jsonl."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from launcher.core.faults import FaultKind
from launcher.core.outcomes import FINAL, AttemptOutcome, JobOutcome
from launcher.diagnosis.slow_rank import slow_words
from launcher.history.descent import in_words
from launcher.history.fields import kind_of
from launcher.history.pace import Pace
from launcher.history.recovery import Recovery, RecoveryFold
from launcher.history.size import BoostersNow, LostTime, Size
from launcher.history.why import FaultStory, StoryFold

Event = Mapping[str, Any]

STATES = (
    "pending", "starting", "running", "training", "recovering", "resizing", "stopping", "requeued", "lost",
    "unreadable", *FINAL,
)  # fmt: skip
_LAST_EVENTS = 8
_LAST_RECOVERIES = 8
_MOST_FAILED_SAVES = 1024  # that are remembered one by one, to count reports of the same save once
_RATE_WINDOW = 8


@dataclass(frozen=True, kw_only=True)
class TierState:
    """The newest commits of a tier.

    Attributes:
        step: the newest committed step.
        time_s: time of its commit, in seconds since the epoch.
        seconds: duration of its save; None if it is not known.
        bytes: its size; None if it is not known.
        every: the steps between the last two commits; None after one commit.
    """

    step: int
    time_s: float
    seconds: float | None = None
    bytes: int | None = None
    every: int | None = None


@dataclass(frozen=True, kw_only=True)
class SlowNode:
    """A node for which all others wait; the fields are those of the event `straggler`.

    Attributes:
        since_s: when it began, in seconds since the epoch.
        step: the newest finished step when it was found; None if it is not known.
    """

    rank: int
    ranks: int
    factor: float
    part: str
    excess_s: float
    since_s: float
    step: int | None = None
    switch: str | None = None

    def text(self) -> str:
        """In words, without the node."""
        all_of_it = f", as most nodes of switch {self.switch}" if self.switch else ""
        words = slow_words(self.rank, self.ranks, self.factor, self.part)
        return f"{words}: {1000 * self.excess_s:.0f} ms more for each step{all_of_it}"


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """One job's state.

    Attributes:
        state: "pending", "starting", "running" (the workers run and have reported no step yet), "training",
            "recovering", "resizing", "stopping", "requeued", or once ended the outcome: a final JobOutcome.
        reason: the cause, where the state has one.
        stop: a user's request to save and end, in words; None if there is none.
        run_id: the run's identity through all its requeues.
        cluster: the name of the job's scheduler.
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
            were kept. Time in the queue, starts, recoveries, saves that hold training up, and steps that were lost
            with a fault and repeated lower it. None before the first step.
        stall_s: seconds for which saves have held training up; 0 if they are not recorded.
        lost_s: seconds without training by cause: "start", "resize", "requeue", or the kind of a fault.
        seconds: wall time in seconds from the first start to now, or to the end.
        events: the last events, oldest first, without frequent ones.
        submitted_nodes: the number of nodes that the job asked for at its start; None before it.
        ready: the nodes whose runners are connected, and whether each can start workers at once.
        tiers: the newest commits of each tier.
        recoveries: the last recoveries, oldest first. One with an empty rung has only its fault so far.
        why: the last faults, oldest first: what each was, what was done, what it cost, and what to do.
        pace: the steps per second since the first start, in equal parts of the time, oldest first.
        waits_until_s: the end of the wait before the next attempt, in seconds since the epoch; None without one.
        went_back: the last times that the job continued from an older step than the newest one, or from none, in words.
        idle_at: the step that was loaded, if the last attempt has ended well without a further one; else None.
        slow: the nodes for which all others wait now.
        node_steps: from node to the step of its slowest rank now, if it is known. Not from the events.
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
    stall_s: float = 0.0
    lost_s: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    events: tuple[Event, ...] = ()
    submitted_nodes: int | None = None
    ready: Mapping[str, bool] = field(default_factory=dict)
    tiers: Mapping[str, TierState] = field(default_factory=dict)
    recoveries: tuple[Recovery, ...] = ()
    why: tuple[FaultStory, ...] = ()
    pace: tuple[float, ...] = ()
    waits_until_s: float | None = None
    went_back: tuple[str, ...] = ()
    idle_at: int | None = None
    slow: Mapping[str, SlowNode] = field(default_factory=dict)
    node_steps: Mapping[str, int] = field(default_factory=dict)

    @property
    def slow_nodes(self) -> str:
        """The slow nodes in a word: the first one, and the number of the others; "" if there is none."""
        first, *others = self.slow or ("",)
        return f"{first} +{len(others)}" if others else first

    def to_mapping(self) -> dict[str, Any]:
        """The status as JSON data."""
        return asdict(self) | {"why": [story.to_mapping() for story in self.why]}


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


@dataclass(frozen=True, kw_only=True)
class Span:
    """A period of training: the steps after `start_step` up to `end_step`, and its time."""

    start_step: int
    end_step: int
    start_s: float
    end_s: float

    def cut(self, step: int) -> Span:
        """The part of the period that still counts after training has continued from `step`."""
        if step >= self.end_step:
            return self
        if step <= self.start_step:
            return replace(self, end_step=self.start_step, end_s=self.start_s)
        share = (step - self.start_step) / (self.end_step - self.start_step)
        return replace(self, end_step=step, end_s=self.start_s + share * (self.end_s - self.start_s))


@dataclass(kw_only=True)
class StatusFold:
    """The fold for readers that follow a running job: add() each event, call status() at any time.

    All its fields are plain data, because `launcher.history.stored` keeps it in a file.

    Attributes:
        known: the status, without what status() computes from the other fields.
        start_s, end_s: the first start and the end, in seconds since the epoch.
        spans: the periods of training.
        is_training: whether the last of them goes on.
        size, lost_time, recoveries, stories, pace: the folds of these parts of the status.
        failed_saves: the last failed saves: attempt, step and tier. Several nodes may report the same save.
        missing: from tier to the newest step that did not reach it.
        loaded: the step that the script has loaded in this attempt; None if it has loaded none.
        recent: the last events.
        speed: time and step of the last reports of a step.
        stall_s: seconds for which saves have held training up.
    """

    known: JobStatus = field(default_factory=JobStatus)
    start_s: float | None = None
    end_s: float | None = None
    spans: list[Span] = field(default_factory=list)
    is_training: bool = False
    size: Size = field(default_factory=Size)
    lost_time: LostTime = field(default_factory=LostTime)
    recoveries: RecoveryFold = field(default_factory=RecoveryFold)
    stories: StoryFold = field(default_factory=StoryFold)
    pace: Pace = field(default_factory=Pace)
    failed_saves: list[tuple[int | None, int | None, str]] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    loaded: int | None = None
    recent: list[dict[str, Any]] = field(default_factory=list)
    speed: list[tuple[float, int]] = field(default_factory=list)
    stall_s: float = 0.0

    def add(self, event: Event) -> None:
        """Add an event. Unknown events and keys are ignored."""
        if not isinstance(event.get("time"), int | float):
            return
        handler = getattr(self, f"_on_{event.get('event')}", None)
        if handler:
            handler(event)
        self.size.add(event)
        self.lost_time.add(event)
        self.recoveries.add(event)
        del self.recoveries.found[:-_LAST_RECOVERIES]
        self.stories.add(event)
        del self.stories.told[:-_LAST_RECOVERIES]
        if not kind_of(event).is_frequent:
            self.recent = [*self.recent, dict(event)][-_LAST_EVENTS:]

    def status(self, now_s: float | None = None) -> JobStatus:
        """The status after the last added event."""
        if self.start_s is None:
            return self.known
        now_s = time.time() if now_s is None else now_s
        end_s = now_s if self.end_s is None else self.end_s
        seconds = max(0.0, end_s - self.start_s)
        spans = self.spans
        if self.is_training and spans:
            spans = [*spans[:-1], replace(spans[-1], end_s=max(spans[-1].end_s, end_s))]
        elastic = None if self.end_s is not None else self.size.now()
        gained_s = sum(span.end_s - span.start_s for span in spans)
        return replace(
            self.known,
            ettr=min(1.0, max(0.0, gained_s - self.stall_s) / seconds) if spans and seconds else None,
            stall_s=self.stall_s,
            steps_per_s=self._steps_per_s(),
            size=None if elastic is None else elastic.text(),
            elastic=elastic,
            lost_s=self.lost_time.seconds(),
            seconds=seconds,
            events=tuple(self.recent),
            recoveries=tuple(self.recoveries.known()),
            why=tuple(self.stories.told),
            pace=self.pace.rates(end_s),
        )

    def _steps_per_s(self) -> float | None:
        if not self.is_training or len(self.speed) < 2:
            return None
        (start_s, first), (end_s, last) = self.speed[0], self.speed[-1]
        return (last - first) / (end_s - start_s) if end_s > start_s and last > first else None

    def _set(self, **changes: Any) -> None:
        self.known = replace(self.known, **changes)

    def _reached(self, event: Event) -> None:
        """Update the finished step from an event of a training attempt."""
        step = event.get("step")
        if not isinstance(step, int) or not self.is_training:
            return
        if not self.speed or step > self.speed[-1][1]:
            self.speed = [*self.speed, (event["time"], step)][-_RATE_WINDOW:]
        self.pace.reached(event["time"], step)
        span = self.spans[-1]
        self.spans[-1] = replace(span, end_step=max(span.end_step, step), end_s=max(span.end_s, event["time"]))
        self._set(step=max(self.known.step, step))

    def _go_on_from(self, step: int) -> None:
        """Continue from a restored step. Later steps are lost and do not count for ETTR."""
        self.is_training = False
        self.pace.stopped()
        self.spans = [span.cut(step) for span in self.spans]

    def _stopped_training(self, event: Event) -> None:
        """Close the attempt's span at the time at which training stopped, which is before a fault's detection."""
        if self.is_training:
            end_s = max(self.spans[-1].start_s, event["time"] - (event.get("detect") or 0.0))
            self._reached({**event, "time": end_s})
            self.spans[-1] = replace(self.spans[-1], end_s=end_s)
        self.is_training = False
        self.pace.stopped()

    def _on_job_start(self, event: Event) -> None:
        if self.start_s is None:
            self.start_s = event["time"]
        self.end_s = None
        self.is_training = False
        self.pace.stopped()
        self._set(
            state="starting",
            reason=None,
            run_id=event.get("run_id"),
            cluster=event.get("cluster"),
            submitted_nodes=event.get("nodes_requested"),
            ready={},
        )

    def _on_attempt_start(self, event: Event) -> None:
        self.speed.clear()
        self.loaded = None
        state = "recovering" if event.get("attempt") else "starting"
        self._set(
            state=self.known.state if self.known.state == "resizing" else state,
            attempt=event.get("attempt"),
            nodes=tuple(event.get("nodes") or ()),
            spares=tuple(event.get("spares") or ()),
            waits_until_s=None,
            slow={},
        )

    def _on_straggler(self, event: Event) -> None:
        slow = SlowNode(
            rank=event["rank"], ranks=event.get("ranks") or 1, factor=event["factor"], part=event["part"],
            excess_s=event.get("excess_s") or 0.0, since_s=event.get("since") or event["time"],
            step=event.get("step"), switch=event.get("switch"),
        )  # fmt: skip
        self._set(slow={**self.known.slow, event["node"]: slow})

    def _on_straggler_over(self, event: Event) -> None:
        self._set(slow={node: slow for node, slow in self.known.slow.items() if node != event["node"]})

    def _on_backoff(self, event: Event) -> None:
        self._set(waits_until_s=event["time"] + (event.get("seconds") or 0.0))

    def _on_node_ready(self, event: Event) -> None:
        self._set(ready={**self.known.ready, str(event.get("node")): bool(event.get("warm"))})

    def _on_restore(self, event: Event) -> None:
        step = event.get("step") or 0
        self._go_on_from(step)
        self._set(step=step)
        self._note_descent(event)

    def _on_loaded(self, event: Event) -> None:
        self.loaded = event.get("step")

    def _on_line(self, event: Event) -> None:
        self._note_descent(event)

    def _note_descent(self, event: Event) -> None:
        if (words := in_words(event)) is not None:
            self._set(went_back=(*self.known.went_back, words)[-_LAST_EVENTS:])

    def _on_workers_started(self, event: Event) -> None:
        self._set(state="running", reason=None)

    def _on_first_step(self, event: Event) -> None:
        step = event.get("step") or 1
        self._go_on_from(step - 1)
        self.spans.append(Span(start_step=step - 1, end_step=step, start_s=event["time"], end_s=event["time"]))
        self.is_training = True
        self.pace.began(event["time"], step)
        self._set(state="training", reason=None, step=step)
        self._reached(event)

    def _on_commit(self, event: Event) -> None:
        self._reached(event)
        self.stall_s += max(0.0, event.get("stall_s") or 0.0)
        tier, step = event.get("tier"), event.get("step")
        if tier and isinstance(step, int):
            before = self.known.tiers.get(tier)
            state = TierState(
                step=step,
                time_s=event["time"],
                seconds=event.get("seconds"),
                bytes=event.get("bytes"),
                every=step - before.step if before is not None and step > before.step else None,
            )
            self._set(committed={**self.known.committed, tier: step}, tiers={**self.known.tiers, tier: state})
            if step >= self.missing.get(tier, step):
                self.missing.pop(tier, None)
                self._set(unsaved={name: why for name, why in self.known.unsaved.items() if name != tier})

    def _on_problem(self, event: Event) -> None:
        if event.get("failed"):
            self._count_failed((event.get("attempt"), event.get("step"), str(event["failed"])))
            tier, step = event["failed"], event.get("step")
            if isinstance(step, int) and step >= self.missing.get(tier, step):
                self.missing[tier] = step
                why = f"step {step}: {event.get('what')}: {' '.join(str(event.get('detail') or '').split())}"
                self._set(unsaved={**self.known.unsaved, tier: why})

    def _count_failed(self, save: tuple[int | None, int | None, str]) -> None:
        if save not in self.failed_saves:
            self.failed_saves = [*self.failed_saves, save][-_MOST_FAILED_SAVES:]
            self._set(failed_saves=self.known.failed_saves + 1)

    def _on_agents_lost(self, event: Event) -> None:
        self._set(reason="nothing is saved: the checkpoint agents were lost")

    def _on_agents_back(self, event: Event) -> None:
        self._set(reason=None)

    def _on_fault(self, event: Event) -> None:
        is_counted = event.get("kind") != FaultKind.PREEMPTED
        if event.get("attempt") is None and self.is_training:  # of a node or booster that does not train yet
            self._set(faults=self.known.faults + is_counted)
            return
        self._stopped_training(event)
        self._set(state="recovering", reason=event.get("reason"), faults=self.known.faults + is_counted)

    def _on_resize(self, event: Event) -> None:
        self._set(state="resizing", reason=f"{event.get('size')} to {event.get('to')} nodes: {event.get('reason')}")

    def _on_node_leaving(self, event: Event) -> None:
        if event.get("allocation") is None and event.get("attempt") is not None:
            self._set(state="resizing", reason=f"a spare takes the place of {event['node']}: {event.get('reason')}")

    def _on_node_out(self, event: Event) -> None:
        node = str(event.get("node"))
        self._set(
            out={**self.known.out, node: event.get("reason") or "no reason given"},
            ready={other: warm for other, warm in self.known.ready.items() if other != node},
            spares=tuple(spare for spare in self.known.spares if spare != node),
        )

    def _on_node_back(self, event: Event) -> None:
        node = str(event.get("node"))
        status = self.known
        is_spare = node not in (*status.nodes, *status.spares) and event.get("allocation") is None
        self._set(
            out={other: why for other, why in status.out.items() if other != node},
            spares=(*status.spares, node) if is_spare else status.spares,
        )

    def _on_stop_requested(self, event: Event) -> None:
        self._set(state="stopping", reason=event.get("reason"))

    def _on_attempt_end(self, event: Event) -> None:
        self._stopped_training(event)
        if event.get("outcome") == AttemptOutcome.STOPPED:
            self._set(state="requeued")
        is_idle = (
            event.get("outcome") == AttemptOutcome.DONE
            and self.loaded is not None
            and (event.get("step") or 0) <= self.loaded
        )
        self._set(idle_at=self.loaded if is_idle else None)

    def _on_job_end(self, event: Event) -> None:
        self._stopped_training(event)
        self.end_s = event["time"]
        self._set(waits_until_s=None, slow={})
        step = event.get("step")
        self._set(
            state=event.get("outcome") or JobOutcome.INTERNAL.value,
            reason=event.get("reason"),
            step=step if isinstance(step, int) else self.known.step,
        )
