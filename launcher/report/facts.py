"""All facts of a job, from one fold of its events. Its report, its metrics and the dashboard show these."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

from launcher.diagnosis.slow_rank import slow_words
from launcher.history.recovery import Recovery, recoveries
from launcher.history.resize import ResizeCost, resizes
from launcher.history.status import JobStatus, StatusFold
from launcher.history.why import FaultStory, StoryFold
from launcher.report.timeline import Period, Timeline, seconds_by_class

Event = Mapping[str, Any]

_MOST_POINTS = 600  # of the curve of steps; twice as many are thinned to these
_MOST_PROBLEMS = 200
_SPEED_REPORTS = 8  # the last reports of a step give the speed
_LONGEST_RUN = 200  # of commits, before it is thinned


@dataclass(kw_only=True)
class AttemptFacts:
    """One attempt. Times are in seconds since the epoch, None if the event is missing.

    Attributes:
        rung: the rung of the recovery ladder on which it began.
        restored_step, restored_from, restore_s: the restored step, its tier, and the seconds that the restore took.
        workers_s: seconds until the workers had started.
        first_step_s: seconds until the first step was finished.
        first_step, last_step: the first and the newest step.
        last_step_time_s: when the newest step was reported.
    """

    number: int
    rung: str
    nodes: int
    start_s: float
    end_s: float | None = None
    outcome: str | None = None
    restored_step: int | None = None
    restored_from: str | None = None
    restore_s: float | None = None
    workers_s: float | None = None
    first_step_s: float | None = None
    first_step: int | None = None
    last_step: int | None = None
    last_step_time_s: float | None = None

    @property
    def step_s(self) -> float | None:
        """Mean seconds of a step, without the first."""
        if None in (self.first_step, self.last_step, self.first_step_s, self.last_step_time_s):
            return None
        steps = self.last_step - self.first_step  # type: ignore[operator]
        seconds = self.last_step_time_s - self.start_s - self.first_step_s  # type: ignore[operator]
        return seconds / steps if steps > 0 and seconds > 0 else None


@dataclass(frozen=True, kw_only=True)
class FaultFacts:
    """One fault as it was recorded; see the event `fault`."""

    time_s: float
    attempt: int | None
    kind: str
    node: str | None
    rank: int | None
    step: int | None
    detect_s: float | None
    reason: str
    fault_class: str
    domain: str


@dataclass(kw_only=True)
class TierFacts:
    """The saves that reached a tier.

    Attributes:
        step: the newest step.
        time_s: when that step was complete, in seconds since the epoch.
        commits: number of steps that were complete.
        bytes: sum of their sizes.
        seconds: sum of the seconds that they took, from the save to the commit.
        slowest_s: the longest of them.
        stall_s: sum of the seconds for which saves have held training up; only of memory.
        failed: number of saves that did not reach the tier.
    """

    tier: str
    step: int | None = None
    time_s: float | None = None
    commits: int = 0
    bytes: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    stall_s: float = 0.0
    failed: int = 0

    @property
    def bytes_per_s(self) -> float | None:
        """Mean speed."""
        return self.bytes / self.seconds if self.bytes and self.seconds > 0 else None


@dataclass(kw_only=True)
class NodeFacts:
    """A node of the job.

    Attributes:
        state: active, spare, out or left.
        attempts: number of attempts in which it trained.
        faults: number of faults that name it.
        rebuilt: number of ranks whose state was rebuilt on it.
        reason: why it is out.
        allocation: the number of the booster that it belongs to.
    """

    node: str
    state: str = "spare"
    attempts: int = 0
    faults: int = 0
    rebuilt: int = 0
    reason: str = ""
    allocation: str | None = None


@dataclass(frozen=True, kw_only=True)
class BoosterFacts:
    """A booster of an elastic job. Times are in seconds since the epoch.

    Attributes:
        allocation: its number.
        job_id: its Slurm job; "" if Slurm has not accepted it.
        asked_s, ready_s, ended_s: when it was requested, when its first node connected, and when it had ended.
        reason: why it waits, leaves, or has ended; the newest that was recorded.
    """

    allocation: str
    job_id: str = ""
    nodes: int | None = None
    asked_s: float | None = None
    ready_s: float | None = None
    ended_s: float | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        """The id by which users know it."""
        return self.job_id or self.allocation


@dataclass(frozen=True, kw_only=True)
class ProblemFacts:
    """A problem that was recorded, with the time, node and detail of the newest occurrence."""

    what: str
    count: int
    time_s: float
    node: str | None
    detail: str


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """All facts of a job.

    Attributes:
        made_s: when these facts were made, in seconds since the epoch.
        status: the job's status; what `holdfast status` prints. Without its pace, which is that of all commits.
        start_s, end_s: the first event, and the last one or now, in seconds since the epoch; None without events.
        has_ended: whether the record has the job's end.
        events: number of events.
        time_s: seconds in each class of time; see `launcher.report.timeline`.
        phases: what the job did when.
        points: time, attempt and step of reports of finished steps, thinned out.
        versions: the versions of the supervisor's environment at the newest start; empty if they are not recorded.
        counts: number of starts, requeues, takeovers and losses of the agents.
        agents_lost: whether the checkpoint agents are lost, so that nothing is saved.
    """

    made_s: float
    status: JobStatus
    start_s: float | None
    end_s: float | None
    has_ended: bool
    events: int
    time_s: Mapping[str, float]
    phases: tuple[Period, ...]
    points: tuple[tuple[float, int, int], ...]
    attempts: tuple[AttemptFacts, ...]
    faults: tuple[FaultFacts, ...]
    why: tuple[FaultStory, ...]
    recoveries: tuple[Recovery, ...]
    tiers: tuple[TierFacts, ...]
    nodes: tuple[NodeFacts, ...]
    resizes: tuple[ResizeCost, ...]
    boosters: tuple[BoosterFacts, ...]
    problems: tuple[ProblemFacts, ...]
    versions: tuple[str, ...]
    counts: Mapping[str, int]
    agents_lost: bool

    def to_mapping(self) -> dict[str, Any]:
        """The facts as JSON data, with the means that follow from them."""
        return {
            **asdict(self),
            "attempts": [asdict(attempt) | {"step_s": attempt.step_s} for attempt in self.attempts],
            "tiers": [asdict(tier) | {"bytes_per_s": tier.bytes_per_s} for tier in self.tiers],
            "why": [story.to_mapping() for story in self.why],
            "resizes": [asdict(resize) | {"seconds": resize.seconds} for resize in self.resizes],
        }


def facts_of(events: Iterable[Event], now_s: float | None = None) -> RunFacts:
    """The facts of a job.

    Args:
        events: its events in order.
        now_s: the current time in seconds since the epoch; None: read the clock.
    """
    fold = FactsFold()
    for event in events:
        fold.add(event)
    return fold.facts(now_s)


class FactsFold:
    """The fold for readers that follow a running job: add() each event, call facts() at any time."""

    def __init__(self) -> None:
        self._status = StatusFold()
        self._timeline = Timeline()
        self._course: list[Event] = []  # the events without the commits on which no cost depends
        self._commits: list[Event] = []  # those since the last other event
        self._events = 0
        self._start_s: float | None = None
        self._last_s: float | None = None
        self._has_ended = False
        self._attempts: list[AttemptFacts] = []
        self._faults: list[FaultFacts] = []
        self._stories = StoryFold()
        self._tiers: dict[str, TierFacts] = {}
        self._nodes: dict[str, NodeFacts] = {}
        self._boosters: dict[str, BoosterFacts] = {}
        self._problems: dict[str, ProblemFacts] = {}
        self._failed_saves: set[tuple[Any, ...]] = set()  # a set, because several nodes may report the same save
        self._points: list[tuple[float, int, int]] = []
        self._every = 1  # of the points, the first of each so many is kept
        self._reports = 0
        self._versions: tuple[str, ...] = ()
        self._counts = dict.fromkeys(("starts", "requeues", "takeovers", "agents_lost"), 0)
        self._agents_lost = False

    def add(self, event: Event) -> None:
        """Add an event. Unknown events and fields are ignored."""
        self._events += 1
        self._timeline.add(event)
        self._start_s = event["time"] if self._start_s is None else self._start_s
        self._last_s = event["time"]
        if event["event"] == "commit":
            self._commits.append(event)
            if len(self._commits) >= _LONGEST_RUN:
                self._commits = _thinned(self._commits)
        else:
            self._fold_commits()
            self._status.add(event)
            self._stories.add(event)
            self._course.append(event)
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    def facts(self, now_s: float | None = None) -> RunFacts:
        """The facts after the last added event."""
        now_s = time.time() if now_s is None else now_s
        self._fold_commits()
        status = replace(self._status.status(now_s), pace=())
        end_s = self._last_s if self._has_ended or self._last_s is None else max(now_s, self._last_s)
        phases = self._timeline.phases(now_s)
        productive_s = None if status.ettr is None else status.ettr * (status.seconds or 0.0)
        return RunFacts(
            made_s=now_s,
            status=status,
            start_s=self._start_s,
            end_s=end_s,
            has_ended=self._has_ended,
            events=self._events,
            time_s=seconds_by_class(phases, productive_s, status.stall_s),
            phases=tuple(phases),
            points=tuple(self._points),
            attempts=tuple(map(replace, self._attempts)),
            faults=tuple(self._faults),
            why=tuple(self._stories.told),
            recoveries=tuple(recoveries(self._course)),
            tiers=tuple(map(replace, self._tiers.values())),
            nodes=tuple(self._node_facts(status)),
            resizes=tuple(resizes(self._course)),
            boosters=tuple(self._boosters.values()),
            problems=tuple(sorted(self._problems.values(), key=lambda problem: -problem.time_s)),
            versions=self._versions,
            counts=dict(self._counts),
            agents_lost=self._agents_lost and not self._has_ended,
        )

    def _fold_commits(self) -> None:
        """Fold the commits that came one after the other. A month has a hundred thousand, and most change nothing."""
        for commit in _thinned(self._commits):
            self._status.add(commit)
            self._course.append(commit)
        self._commits = []

    def _node_facts(self, status: JobStatus) -> Iterable[NodeFacts]:
        for node, facts in self._nodes.items():
            if node in status.out:
                yield replace(facts, state="out", reason=str(status.out[node]))
            elif node in status.nodes or node in status.spares:
                yield replace(facts, state="active" if node in status.nodes else "spare")
            else:
                yield replace(facts, state="left" if facts.state == "left" else "spare")

    def _attempt_of(self, event: Event) -> AttemptFacts | None:
        """The newest attempt, if the event is of it. Events of earlier ones come too late to count."""
        newest = self._attempts[-1] if self._attempts else None
        return newest if newest is not None and event.get("attempt") in (None, newest.number) else None

    def _reached(self, event: Event) -> None:
        step, attempt = event.get("step"), self._attempt_of(event)
        if step is None or attempt is None or (attempt.last_step is not None and step <= attempt.last_step):
            return
        attempt.last_step, attempt.last_step_time_s = step, event["time"]
        if event["event"] == "attempt_end":  # that is the time of the end, not of the step
            return
        self._reports += 1
        if self._reports % self._every == 0:
            self._points.append((event["time"], attempt.number, step))
        if len(self._points) >= 2 * _MOST_POINTS:
            self._points, self._every = self._points[::2], 2 * self._every

    def _node(self, node: str) -> NodeFacts:
        return self._nodes.setdefault(node, NodeFacts(node=node))

    def _tier(self, tier: str) -> TierFacts:
        return self._tiers.setdefault(tier, TierFacts(tier=tier))

    def _booster(self, event: Event, **changes: Any) -> None:
        allocation = event["allocation"]
        known = self._boosters.get(allocation) or BoosterFacts(allocation=allocation)
        self._boosters[allocation] = replace(known, **changes)

    def _on_job_start(self, event: Event) -> None:
        self._counts["starts"] += 1
        self._counts["requeues"] = max(self._counts["requeues"], event.get("restart_count") or 0)
        self._has_ended = self._agents_lost = False
        self._versions = tuple(event.get("versions") or ())

    def _on_takeover(self, event: Event) -> None:
        self._counts["takeovers"] += 1

    def _on_node_ready(self, event: Event) -> None:
        node = self._node(event["node"])
        node.allocation, node.state = event.get("allocation") or node.allocation, "spare"  # a warm one has none
        booster = self._boosters.get(event.get("allocation") or "")
        if booster is not None and booster.ready_s is None:
            self._booster({**event, "allocation": booster.allocation}, ready_s=event["time"])

    def _on_node_leaving(self, event: Event) -> None:
        self._node(event["node"]).state = "left"
        if event.get("allocation") is not None:
            self._booster(event, reason=event.get("reason") or "")

    def _on_attempt_start(self, event: Event) -> None:
        self._agents_lost = False
        self._attempts.append(
            AttemptFacts(number=event["attempt"], rung=event["rung"], nodes=len(event["nodes"]), start_s=event["time"])
        )
        for node in event["nodes"]:
            self._node(node).attempts += 1

    def _on_restore(self, event: Event) -> None:
        if (attempt := self._attempt_of(event)) is not None:
            attempt.restored_step, attempt.restored_from = event["step"], event["tier"]
            attempt.restore_s = event.get("seconds")

    def _on_workers_started(self, event: Event) -> None:
        if (attempt := self._attempt_of(event)) is not None:
            attempt.workers_s = event["seconds"]

    def _on_first_step(self, event: Event) -> None:
        if (attempt := self._attempt_of(event)) is not None:
            attempt.first_step_s, attempt.first_step = event["seconds"], event.get("step")
        self._reached(event)

    def _on_commit(self, event: Event) -> None:
        self._reached(event)
        tier, seconds = self._tier(event["tier"]), event.get("seconds") or 0.0
        tier.step, tier.time_s = event["step"], event["time"]
        tier.commits += 1
        tier.bytes += event.get("bytes") or 0
        tier.seconds += seconds
        tier.slowest_s = max(tier.slowest_s, seconds)
        tier.stall_s += event.get("stall_s") or 0.0

    def _on_rebuilt(self, event: Event) -> None:
        if event.get("node"):
            self._node(event["node"]).rebuilt += 1

    def _on_fault(self, event: Event) -> None:
        self._faults.append(
            FaultFacts(
                time_s=event["time"], attempt=event.get("attempt"), kind=event["kind"], node=event.get("node"),
                rank=event.get("rank"), step=event.get("step"), detect_s=event.get("detect"),
                reason=event.get("reason") or "", fault_class=event.get("class") or "unknown",
                domain=event.get("domain") or "unknown",
            )
        )  # fmt: skip
        if event.get("node"):
            self._node(event["node"]).faults += 1

    def _on_problem(self, event: Event) -> None:
        what = event.get("what") or "?"
        known = self._problems.pop(what, None)
        if len(self._problems) >= _MOST_PROBLEMS:
            self._problems.pop(next(iter(self._problems)))
        self._problems[what] = ProblemFacts(
            what=what, count=(known.count if known else 0) + 1, time_s=event["time"], node=event.get("node"),
            detail=event.get("detail") or "",
        )  # fmt: skip
        save = (event.get("failed"), event.get("attempt"), event.get("step"))
        if save[0] and save not in self._failed_saves:
            self._failed_saves.add(save)
            self._tier(save[0]).failed += 1

    def _on_straggler(self, event: Event) -> None:
        detail = slow_words(event["rank"], event.get("ranks") or 1, event["factor"], event["part"])
        self._on_problem({**event, "what": f"slow: all others waited for {event['node']}", "detail": detail})

    def _on_agents_lost(self, event: Event) -> None:
        self._counts["agents_lost"] += 1
        self._agents_lost = True

    def _on_agents_back(self, event: Event) -> None:
        self._agents_lost = False

    def _on_booster_asked(self, event: Event) -> None:
        self._booster(event, nodes=event["nodes"], asked_s=event["time"])

    def _on_booster_submitted(self, event: Event) -> None:
        self._booster(event, job_id=event["job_id"])

    def _on_booster_waits(self, event: Event) -> None:
        self._booster(event, reason=event.get("reason") or "")

    _on_booster_leaving = _on_booster_waits

    def _on_booster_end(self, event: Event) -> None:
        self._booster(event, ended_s=event["time"], reason=event.get("reason") or "")

    def _on_attempt_end(self, event: Event) -> None:
        self._reached(event)
        if (attempt := self._attempt_of(event)) is not None:
            attempt.end_s, attempt.outcome = event["time"], event.get("outcome")

    def _on_job_end(self, event: Event) -> None:
        self._has_ended = True


def _thinned(commits: Sequence[Event]) -> list[Event]:
    """The commits on which a status depends: the last two of each tier, and those of the speed.

    Each has the stalls of those before it that are left out.
    """
    of_tier: dict[str, list[int]] = {}
    for index, commit in enumerate(commits):
        of_tier[commit["tier"]] = [*of_tier.get(commit["tier"], ())[-1:], index]
    higher: list[int] = []
    for index, commit in enumerate(commits):
        if not higher or commit["step"] > commits[higher[-1]]["step"]:
            higher.append(index)
    kept: list[Event] = []
    since = 0
    for index in sorted({*chain(*of_tier.values()), *higher[-_SPEED_REPORTS:]}):
        stall_s = sum(commit.get("stall_s") or 0.0 for commit in commits[since : index + 1])
        kept.append({**commits[index], "stall_s": stall_s} if stall_s else commits[index])
        since = index + 1
    return kept
