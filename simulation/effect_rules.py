"""What follows from each kind of input: the events that are recorded, and the commands that are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from launcher.core import commands as do
from launcher.core import inputs as given
from launcher.core.faults import FaultKind
from launcher.core.stop_reasons import StopReason
from simulation.journal import Journal
from simulation.runner import BASE

_LOST = (FaultKind.NODE_LOST, FaultKind.PREEMPTED)


class Decided:
    """The commands of a decision."""

    def __init__(self, todo: tuple[do.Command, ...]) -> None:
        self.todo = todo
        self.records = [command for command in todo if type(command) is do.Record]

    def has(self, kind: type) -> bool:
        return any(type(command) is kind for command in self.todo)

    def of(self, kind: type) -> list[Any]:
        return [command for command in self.todo if type(command) is kind]

    def record(self, event: str, **fields: Any) -> do.Record | None:
        """The first such event that it records."""
        for each in self.records:
            if each.event == event and all(each.fields.get(name) == value for name, value in fields.items()):
                return each
        return None

    def sends(self, order: do.Order, node: str | None = None, attempt: int | None = None) -> bool:
        return any(
            each.order is order and (node is None or node in each.nodes) and attempt in (None, each.attempt)
            for each in self.of(do.Send)
        )

    def dismisses(self, node: str) -> bool:
        return any(each.node == node for each in self.of(do.Dismiss))

    def has_fault(self, node: str, kinds: tuple[str, ...]) -> bool:
        return any(self.record("fault", node=node, kind=kind) is not None for kind in kinds)

    def leaves(self, allocation: str) -> bool:
        return any(each.fields.get("allocation") == allocation for each in self.records)


Rule = Callable[[Journal, Any, Decided], Iterator[str]]

# Nodes


def _node_joined(journal: Journal, message: given.NodeJoined, its: Decided) -> Iterator[str]:
    node, allocation = message.node, message.allocation or BASE
    if allocation != BASE and allocation not in journal.boosters:
        if not (its.dismisses(node) and its.record("problem", node=node) and its.has(do.EndAllocation)):
            yield "its allocation was not requested, and is not ended"
    elif node in journal.out:
        if its.record("node_back", node=node) is not None:
            yield "it was out, and is back before the scheduler is asked whether it can be used"
    elif allocation == BASE or (node not in journal.there and allocation not in journal.leaving):
        if message.problem is not None:
            if not its.dismisses(node) or its.record("fault", node=node, reason=message.problem) is None:
                yield "the problem of the node is not recorded, or its runner is not dismissed"
        elif its.record("node_ready", node=node, warm=message.is_warm) is None and not its.dismisses(node):
            yield "no event says that the node is ready"
        is_of_attempt = journal.runs and node in journal.nodes
        is_ended = its.dismisses(node) or its.sends(do.Order.KILL, node)
        if message.attempt is not None and not is_of_attempt and not is_ended:
            yield "the workers of an earlier attempt are not ended"


def _node_lost(journal: Journal, message: given.NodeLost, its: Decided) -> Iterator[str]:
    node = message.node
    is_held = (
        not journal.is_ending
        and not {"restore", "fault"} & journal.seen
        and not journal.asked[do.Purpose.AGENTS_FAILED]
    )
    is_needed = node in journal.nodes or (node in journal.holders and is_held)
    if journal.runs and is_needed and node not in journal.lost and not its.has_fault(node, _LOST):
        yield "the attempt needs the node, and no fault is recorded"
    is_expected = journal.are_launched or journal.leaving or node in journal.out
    if not is_expected and its.record("node_out", node=node, lost=True) is None:
        yield "no event says that the node is out"


def _node_broken(journal: Journal, message: given.NodeBroken, its: Decided) -> Iterator[str]:
    node = message.node
    kind = FaultKind.ENVIRONMENT if message.is_environment else FaultKind.RUNNER_LOST
    if node in journal.out:
        return
    if its.record("node_out", node=node) is None:
        yield "no event says that the node is out"
    if journal.runs and node in journal.nodes and node not in journal.lost and not its.has_fault(node, (kind,)):
        yield "the attempt needs the node, and no fault is recorded"


def _isolation(journal: Journal, message: given.IsolationChanged, its: Decided) -> Iterator[str]:
    if its.has(do.LetGo) is not message.is_isolated:
        yield "the launchers may end processes that another supervisor leads"
    if not message.is_isolated and any("come back" in each.fields.get("reason", "") for each in its.records):
        yield "nodes have no time to come back"


# The attempt


def _workers_killed(journal: Journal, message: given.WorkersKilled, its: Decided) -> Iterator[str]:
    if (message.left or message.held) and message.node not in journal.out and not its.dismisses(message.node):
        yield "the node still has something of the attempt, and its runner is not dismissed"


def _once(event: str) -> Rule:
    def rule(journal: Journal, message: Any, its: Decided) -> Iterator[str]:
        if (its.record(event) is not None) is (event in journal.seen):
            yield "it is recorded again" if event in journal.seen else "it is not recorded"

    return rule


def _committed(journal: Journal, message: given.Committed, its: Decided) -> Iterator[str]:
    is_news = message.step > journal.committed.get(message.tier, -1)
    if (its.record("commit", step=message.step, tier=message.tier) is not None) is not is_news:
        yield "it is not recorded" if is_news else "it is recorded again"


def _reported(journal: Journal, message: given.Reported, its: Decided) -> Iterator[str]:
    if its.record(message.event) is None and message.event != "problem":  # agents that make way miss each other
        yield "it is not recorded"


# Answers


def _unusable(journal: Journal, message: given.UnusableAnswered, its: Decided) -> Iterator[str]:
    purpose, asked = message.purpose, do.Purpose
    if purpose in (asked.START, asked.AGAIN) and its.has(do.ProbeFolder):
        started = {node for each in its.of(do.StartRunners) for node in each.nodes}
        missing = {*message.asked} - {*message.unusable} - {*journal.out} - journal.there
        if purpose is asked.START and started != missing:
            yield f"runners of {sorted(started)} start, {sorted(missing)} are missing"
        if any(not its.dismisses(node) for node in message.unusable):
            yield "an unusable node is not dismissed"


def _explained(journal: Journal, message: given.TerminationExplained, its: Decided) -> Iterator[str]:
    is_asked = journal.asked[do.AskWhyTerminated] > 0
    if not is_asked and its.record("stop_requested", reason=message.why) is not None:
        yield "the job stops for an answer to no question"
    is_new = message.why == StopReason.CANCEL and not journal.is_cancelled
    if is_asked and is_new and its.record("stop_requested", reason=StopReason.CANCEL) is None:
        yield "the job is not cancelled"


# Boosters and users


def _allocation_asked(journal: Journal, message: given.AllocationAsked, its: Decided) -> Iterator[str]:
    name, is_refused = message.allocation, message.error is not None
    if name not in journal.boosters:
        return
    if (its.record("booster_submitted", allocation=name, job_id=message.job_id) is not None) is is_refused:
        yield "an event says that the scheduler has it" if is_refused else "the booster's job id is not recorded"
    is_unwanted = is_refused is not (name in journal.ended) and name not in journal.of_boosters.values()
    if is_unwanted and do.EndAllocation(allocation=name) not in its.todo:
        yield "the scheduler may have it, and it is not ended"


def _allocations_seen(journal: Journal, message: given.AllocationsSeen, its: Decided) -> Iterator[str]:
    ended = {each.allocation for each in its.of(do.EndAllocation)}
    for name, state in message.states.items():
        if state is given.AllocationState.ENDED:
            if (its.record("booster_end", allocation=name) is not None) is not (name in journal.boosters):
                yield f"the end of {name} is not recorded, or again"
        elif name in journal.ended or name not in journal.boosters:
            if name not in ended:
                yield f"{name} is not wanted, and is not ended"
        elif state is given.AllocationState.PREEMPTED and name not in journal.leaving and not its.leaves(name):
            yield f"{name} is preempted, and does not leave"


def _terminated(journal: Journal, message: given.Terminated, its: Decided) -> Iterator[str]:
    allocation = journal.of_boosters.get(message.node or "")
    if allocation is not None:
        if allocation not in journal.leaving and not its.leaves(allocation):
            yield "its booster does not leave"
    elif not (journal.asked[do.AskWhyTerminated] or journal.is_cancelled or its.has(do.AskWhyTerminated)):
        yield "the scheduler is not asked why"


def _time_warned(journal: Journal, message: given.TimeWarned, its: Decided) -> Iterator[str]:
    if journal.stop is None and not journal.asked[do.AskTimeLeft] and not its.has(do.AskTimeLeft):
        yield "the scheduler is not asked for the time left"


def _cancel_asked(journal: Journal, message: given.CancelAsked, its: Decided) -> Iterator[str]:
    if (its.record("stop_requested", reason=StopReason.CANCEL) is not None) is journal.is_cancelled:
        yield "it is recorded again" if journal.is_cancelled else "it is not recorded"


def _scale_asked(journal: Journal, message: given.ScaleAsked, its: Decided) -> Iterator[str]:
    record = its.record("scale_requested")
    wanted = record.fields.get("nodes") if record is not None else journal.scale
    if (wanted is None) is not (message.nodes is None):
        yield f"{wanted} nodes are wanted"


EFFECTS: dict[type, Rule] = {
    given.NodeJoined: _node_joined,
    given.NodeLost: _node_lost,
    given.NodeBroken: _node_broken,
    given.IsolationChanged: _isolation,
    given.WorkersKilled: _workers_killed,
    given.FirstStep: _once("first_step"),
    given.Restored: _once("restore"),
    given.Committed: _committed,
    given.Reported: _reported,
    given.UnusableAnswered: _unusable,
    given.TerminationExplained: _explained,
    given.AllocationAsked: _allocation_asked,
    given.AllocationsSeen: _allocations_seen,
    given.Terminated: _terminated,
    given.TimeWarned: _time_warned,
    given.CancelAsked: _cancel_asked,
    given.ScaleAsked: _scale_asked,
}
