"""The part of the state that is computed from events.jsonl: a fold over its events.

The running core folds each event that it records. Take-over and requeue fold the events of the file. Both give the same
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rpds import HashTrieMap, HashTrieSet

from launcher.core.faults import FaultKind
from launcher.core.frozen import replace
from launcher.core.gains import Event, Gains, after_fault
from launcher.core.marks import DepartureCause
from launcher.core.outcomes import AttemptOutcome
from launcher.core.stop_reasons import StopReason

_STOP_REASONS: Mapping[str, StopReason] = {reason.value: reason for reason in StopReason}
_NOT_THE_JOBS = (
    FaultKind.PREFLIGHT,
    FaultKind.BOOSTER_START,
    FaultKind.SCHEDULER_LOST,
)  # faults that do not show whether the job makes progress


@dataclass(frozen=True, kw_only=True)
class NodeOut:
    """A node that is out, according to the events.

    Attributes:
        is_lost: whether the only reason is that it was not reached.
        is_environment: whether the job's Python cannot be loaded there. It is out until the job's next start.
        is_drained: whether the job has left it because it was drained. The next start has it if the scheduler gives it.
    """

    reason: str
    is_lost: bool = False
    is_environment: bool = False
    is_drained: bool = False


@dataclass(frozen=True, kw_only=True)
class NodeLeaving:
    """A node that a spare replaces before it fails, according to the events.

    Attributes:
        cause: a value of `marks.DepartureCause`.
    """

    cause: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class RecordedBooster:
    """A booster, according to the events.

    Attributes:
        job_id: the scheduler's id of it; "" if no answer of the scheduler is recorded.
        nodes: the nodes whose runners have connected.
        is_leaving: whether one of its nodes is leaving.
    """

    allocation: str
    job_id: str = ""
    nodes: tuple[str, ...] = ()
    is_leaving: bool = False
    has_ended: bool = False


@dataclass(frozen=True, kw_only=True)
class Running:
    """The attempt that began last.

    Attributes:
        begun_s: its start (epoch), from the events.
        workers_s: time at which its workers ran (epoch); None before.
        has_ended: whether its end is recorded.
        generation: that of its agents.
        agents_lost: whether the agents are lost and not replaced yet.
        fault: the first fault, which is decisive; None if there is none.
        is_resizing: whether it ends so that one of another size can begin.
        is_free: whether it ended for a resize or a preempted booster; then the next one is not counted as a restart.
        is_done: whether the script has ended its training.
        step: the newest finished step at its end; None before, or if it is not known.
    """

    number: int
    nodes: tuple[str, ...]
    begun_s: float
    workers_s: float | None = None
    has_ended: bool = False
    restored: bool = False
    first_step_seen: bool = False
    committed: HashTrieMap[str, int] = field(default_factory=HashTrieMap)
    generation: int = 0
    agents_lost: bool = False
    fault: Event | None = None
    is_resizing: bool = False
    is_free: bool = False
    is_done: bool = False
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """The job, according to its events.

    Attributes:
        has_checkpoint: whether committed steps show the progress of the job's script.
        out: nodes that are out.
        leaving: nodes that are being left, and are not out yet.
        runners: nodes whose runners have connected since the job's last start.
        first_attempt, next_attempt: the numbers of the run's first attempt, and of the next one.
        attempt: the last attempt since the job's last start; None if there is none.
        positions: the nodes of the last attempt, also of earlier starts.
        trained: the nodes that hold the newest step: of the attempt that committed it, and of those begun since.
        step: the newest committed step; None if there is none.
        gains: the input of the recovery ladder.
        tells_steps: whether the script has ever reported a step.
        longest_start_s: the longest time that an attempt took until its first step.
        stop, is_halt, is_cancelled: the requests since the job's last start, as in `state.Requests`.
        hangs, hang_step: number of hangs since a step newer than hang_step, which is the newest step at which it hung.
        boosters: the boosters since the job's last start, oldest first.
        next_booster: the number of the next booster. No number is used twice in a folder.
        holders: nodes that serve the last attempt without training.
        scale: the size that a user has requested; None if there is no request.
        slow: from a rank to the node on which it was slow first.
    """

    has_checkpoint: bool = True
    out: HashTrieMap[str, NodeOut] = field(default_factory=HashTrieMap)
    leaving: HashTrieMap[str, NodeLeaving] = field(default_factory=HashTrieMap)
    runners: HashTrieSet[str] = field(default_factory=HashTrieSet)
    first_attempt: int = 0
    next_attempt: int = 0
    attempt: Running | None = None
    positions: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    step: int | None = None
    gains: Gains = field(default_factory=Gains)
    tells_steps: bool = False
    longest_start_s: float = 0.0
    hangs: int = 0
    hang_step: int = 0
    stop: StopReason | None = None
    is_halt: bool = False
    is_cancelled: bool = False
    boosters: tuple[RecordedBooster, ...] = ()
    next_booster: int = 1
    holders: tuple[str, ...] = ()
    scale: int | None = None
    slow: HashTrieMap[int, str] = field(default_factory=HashTrieMap)

    @property
    def is_done(self) -> bool:
        """Whether the script has ended its training since the job's last start."""
        return self.attempt is not None and self.attempt.is_done

    @property
    def finished_step(self) -> int | None:
        """The newest step that is known to be finished, committed or not."""
        at_end = None if self.attempt is None else self.attempt.step
        return max((step for step in (self.step, at_end) if step is not None), default=None)

    @property
    def running_attempt(self) -> Running | None:
        """The attempt whose workers run, if none of its nodes is out."""
        attempt = self.attempt
        if attempt is None or attempt.has_ended or attempt.workers_s is None or attempt.fault is not None:
            return None
        return None if any(node in self.out for node in attempt.nodes) else attempt


def replay(events: Iterable[Event], history: History) -> History:
    """Folds events, oldest first, into a history."""
    for event in events:
        history = apply(history, event)
    return history


def apply(history: History, event: Event) -> History:
    """Folds one event. Unknown events are ignored."""
    fold = _FOLDS.get(event["event"])
    return history if fold is None else fold(history, event)


def _job_start(history: History, event: Event) -> History:
    history = judged(history)
    out = history.out
    for node, why in out.items():
        if why.is_environment or why.is_drained:  # the job's Python may be repaired, and the node in service again
            out = out.discard(node)
    gains = replace(history.gains, agentless=0)
    history = replace(history, out=out, runners=HashTrieSet(), attempt=None, gains=gains, boosters=(), holders=())
    return replace(history, leaving=HashTrieMap(), stop=None, is_halt=False, is_cancelled=False)


def _job_end(history: History, event: Event) -> History:
    """The run has ended for good. A later one in the same folder has its steps, but not its requests and faults."""
    history = judged(history)
    before = history.gains
    gains = Gains(
        step=before.step,
        step_at_fault=before.step,
        restored=before.restored,
        file_s=before.file_s,
        file_at_fault_s=before.file_s or 0.0,
    )
    history = replace(history, out=HashTrieMap(), gains=gains, hangs=0, scale=None)
    return replace(history, first_attempt=history.next_attempt)


def _node_ready(history: History, event: Event) -> History:
    node, allocation = event["node"], event.get("allocation")
    if node not in history.runners:
        history = replace(history, runners=history.runners.insert(node))
    if allocation is None:
        return history
    boosters = []
    for booster in history.boosters:
        nodes, is_in = booster.nodes, node in booster.nodes
        if is_in and booster.allocation != allocation:  # its memory ended with that allocation
            history = _without_memory(history, node)
            nodes = _without(nodes, node)
        elif not is_in and booster.allocation == allocation:
            nodes = (*nodes, node)
        boosters.append(booster if nodes is booster.nodes else replace(booster, nodes=nodes))
    return replace(history, boosters=tuple(boosters))


def _without_memory(history: History, node: str) -> History:
    """A node has no shards any more."""
    return replace(history, holders=_without(history.holders, node), trained=_without(history.trained, node))


def _without(nodes: tuple[str, ...], node: str) -> tuple[str, ...]:
    return tuple(other for other in nodes if other != node)


def _of_booster(history: History, event: Event, **changes: Any) -> History:
    boosters = tuple(
        replace(each, **changes) if each.allocation == event["allocation"] else each for each in history.boosters
    )
    return replace(history, boosters=boosters)


def _booster_asked(history: History, event: Event) -> History:
    boosters = (*history.boosters, RecordedBooster(allocation=event["allocation"]))
    return replace(history, boosters=boosters, next_booster=history.next_booster + 1)


def _booster_submitted(history: History, event: Event) -> History:
    return _of_booster(history, event, job_id=event["job_id"])


def _leaving(history: History, event: Event) -> History:
    if event.get("allocation") is not None:
        return _of_booster(history, event, is_leaving=True)
    why = NodeLeaving(cause=event.get("cause") or "", reason=event.get("reason") or "no reason given")
    history = replace(history, leaving=history.leaving.insert(event["node"], why))
    return _of_attempt(history, event, is_resizing=True)


def _booster_end(history: History, event: Event) -> History:
    return _of_booster(history, event, has_ended=True)


def _scale_requested(history: History, event: Event) -> History:
    return replace(history, scale=event.get("nodes"))


def _straggler(history: History, event: Event) -> History:
    rank = event["rank"]
    return history if rank in history.slow else replace(history, slow=history.slow.insert(rank, event["node"]))


def _straggler_over(history: History, event: Event) -> History:
    for rank, node in history.slow.items():
        if node == event["node"]:
            history = replace(history, slow=history.slow.discard(rank))
    return history


def _resize(history: History, event: Event) -> History:
    return _of_attempt(history, event, is_resizing=True)


def _holders_released(history: History, event: Event) -> History:
    history = _of_attempt(history, event, generation=event["generation"], agents_lost=True)
    return replace(history, holders=())


def _node_out(history: History, event: Event) -> History:
    node = event["node"]
    if node in history.out:
        return history
    out = NodeOut(
        reason=event.get("reason") or "no reason given",
        is_lost=bool(event.get("lost")),
        is_environment=bool(event.get("environment")),
        is_drained=event.get("cause") == DepartureCause.DRAINED.value,
    )
    history = replace(history, out=history.out.insert(node, out), leaving=history.leaving.discard(node))
    if not out.is_lost:  # its runner is told to remove its memory
        return _without_memory(history, node)
    return replace(history, holders=_without(history.holders, node))


def _node_back(history: History, event: Event) -> History:
    return replace(history, out=history.out.discard(event["node"]))


def _attempt_start(history: History, event: Event) -> History:
    history = judged(history)
    number = event["attempt"]
    is_restart = number > history.first_attempt and not (history.attempt is not None and history.attempt.is_free)
    gains = replace(history.gains, restarts=history.gains.restarts + is_restart)
    attempt = Running(number=number, nodes=tuple(event["nodes"]), begun_s=event["time"])
    next_attempt = max(history.next_attempt, number + 1)
    holders = tuple(event.get("holders") or ())
    used = {*attempt.nodes, *holders}
    boosters = tuple(each for each in history.boosters if not each.has_ended or used.intersection(each.nodes))
    trained = tuple(dict.fromkeys((*history.trained, *attempt.nodes)))
    history = replace(history, boosters=boosters, holders=holders, trained=trained)
    return replace(history, attempt=attempt, positions=attempt.nodes, next_attempt=next_attempt, gains=gains)


def _of_attempt(history: History, event: Event, **changes: Any) -> History:
    attempt = history.attempt
    if attempt is None or event.get("attempt") != attempt.number:
        return history
    return replace(history, attempt=replace(attempt, **changes))


def _workers_started(history: History, event: Event) -> History:
    return _of_attempt(history, event, workers_s=event["time"])


def _restore(history: History, event: Event) -> History:
    step = event.get("step") or 0
    if step > history.gains.restored:
        gains = replace(history.gains, restored=step, fruitless=0, unlucky=0)
        history = replace(history, gains=gains)
    return _of_attempt(history, event, restored=True)


def _first_step(history: History, event: Event) -> History:
    longest_start_s = max(history.longest_start_s, event.get("seconds") or 0.0)
    seen = _of_attempt(history, event, first_step_seen=True)
    return replace(seen, tells_steps=True, longest_start_s=longest_start_s)


def _commit(history: History, event: Event) -> History:
    step = event["step"]
    before = history.gains
    gains = replace(before, step=max(step, before.step), committed=max(step, before.committed))
    hangs = 0 if step > history.hang_step else history.hangs
    history = replace(history, gains=gains, hangs=hangs, step=max(step, history.step or 0))
    attempt = history.attempt
    if attempt is None or event.get("attempt") != attempt.number:
        return history
    committed = attempt.committed.insert(event["tier"], step)
    return replace(history, trained=attempt.nodes, attempt=replace(attempt, committed=committed))


def _own_checkpoint(history: History, event: Event) -> History:
    gains, attempt, modified_s = history.gains, history.attempt, event["modified"]
    if gains.file_s is None and (attempt is None or modified_s <= attempt.begun_s):  # not written by this job
        gains = replace(gains, file_at_fault_s=modified_s)
    return replace(history, gains=replace(gains, file_s=max(gains.file_s or 0.0, modified_s)))


def _agents_lost(history: History, event: Event) -> History:
    return _of_attempt(history, event, generation=event["generation"] + 1, agents_lost=True)


def _agents_back(history: History, event: Event) -> History:
    return _of_attempt(history, event, generation=event["generation"], agents_lost=False)


def _fault(history: History, event: Event) -> History:
    if event["kind"] == FaultKind.HANG:
        hang_step = max(history.hang_step, event.get("step") or 0)
        history = replace(history, hangs=history.hangs + 1, hang_step=hang_step)
    attempt = history.attempt
    if attempt is not None and not attempt.has_ended and event.get("attempt") == attempt.number:
        if attempt.fault is not None:
            return history
        return replace(history, attempt=replace(attempt, fault=event, is_free=event["kind"] == FaultKind.PREEMPTED))
    if event["kind"] in _NOT_THE_JOBS or not (attempt is None or attempt.has_ended):
        return history
    return _with_fault(history, event, workers_s=None)  # no attempt could begin


def _stop_requested(history: History, event: Event) -> History:
    reason = _STOP_REASONS.get(str(event.get("reason")))
    if event.get("detail") or reason is None:  # with a detail: part of a requeue that nobody requested
        return history
    if reason is StopReason.CANCEL:
        return replace(history, is_cancelled=True)
    is_new = history.stop in (None, StopReason.HALT)
    return replace(
        history, stop=reason if is_new else history.stop, is_halt=history.is_halt or reason is StopReason.HALT
    )


def _attempt_end(history: History, event: Event) -> History:
    is_done = event.get("outcome") == AttemptOutcome.DONE
    history = judged(_of_attempt(history, event, has_ended=True, is_done=is_done, step=event.get("step")))
    if event.get("outcome") == AttemptOutcome.RESIZED:
        return _of_attempt(history, event, is_free=True)
    tells_gains = history.has_checkpoint or history.gains.file_s is not None
    is_stopped = event.get("outcome") == AttemptOutcome.STOPPED and history.stop is StopReason.TIME_LIMIT
    if tells_gains and is_stopped and history.attempt is not None:
        # A start that the time limit ends counts as an attempt: every start may be too short for progress.
        end = {"kind": StopReason.TIME_LIMIT, "time": event["time"]}
        history = _with_fault(history, end, history.attempt.workers_s)
    return history


def judged(history: History) -> History:
    """Takes account of the fault that ended the attempt: at its end, as steps may be committed until then."""
    attempt = history.attempt
    if attempt is None or attempt.fault is None:
        return history
    if attempt.fault["kind"] not in (FaultKind.PREEMPTED, *_NOT_THE_JOBS):
        history = _with_fault(history, attempt.fault, attempt.workers_s)
    return replace(history, attempt=replace(attempt, fault=None, has_ended=True))


def _with_fault(history: History, fault: Event, workers_s: float | None) -> History:
    gains = after_fault(history.gains, fault, workers_s, has_checkpoint=history.has_checkpoint)
    return replace(history, gains=gains)


_FOLDS = {
    "job_start": _job_start,
    "job_end": _job_end,
    "node_ready": _node_ready,
    "node_out": _node_out,
    "node_back": _node_back,
    "attempt_start": _attempt_start,
    "workers_started": _workers_started,
    "restore": _restore,
    "first_step": _first_step,
    "commit": _commit,
    "own_checkpoint": _own_checkpoint,
    "booster_asked": _booster_asked,
    "booster_submitted": _booster_submitted,
    "booster_end": _booster_end,
    "booster_leaving": _leaving,
    "node_leaving": _leaving,
    "scale_requested": _scale_requested,
    "straggler": _straggler,
    "straggler_over": _straggler_over,
    "resize": _resize,
    "holders_released": _holders_released,
    "agents_lost": _agents_lost,
    "agents_back": _agents_back,
    "fault": _fault,
    "stop_requested": _stop_requested,
    "attempt_end": _attempt_end,
}
