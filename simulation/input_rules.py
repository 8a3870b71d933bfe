"""What follows from each kind of input: the events that are recorded, and the commands that are given.

A rule takes the state before a decision, its input and its commands, and names what is missing. It does not repeat
which fields of the state change: the unit tests of the core have that. So rules also hold for inputs that are only
tried (`probes`). This module has the rules of nodes; `attempt_rules` and `answer_rules` have the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.core import commands as do
from launcher.core import inputs as given
from launcher.core.decision import PAUSE_S
from launcher.core.faults import FaultKind
from launcher.core.members import Phase, is_usable
from launcher.core.nodes import MAX_RETURNS
from launcher.core.state import AttemptPhase, BoosterPhase, Stage, State
from simulation import answer_rules, attempt_rules
from simulation.decided import AT_WORK, Decided, Rule
from simulation.violation import Violation

_GONE = (Phase.OUT, Phase.RETURNING)
_BEFORE_CAUSE = (
    AttemptPhase.RECORDING, AttemptPhase.RETURNING, AttemptPhase.STARTING, AttemptPhase.TRAINING, AttemptPhase.JUDGING,
    AttemptPhase.FINDING_CAUSE,
)  # fmt: skip


def check_input(before: State, message: Any, after: State, todo: tuple[do.Command, ...], now_s: float) -> None:
    """Checks a decision by its input.

    Raises:
        Violation: the state after it, or its commands, do not fit.
    """
    rule = _RULES.get(type(message))
    if rule is None or Stage.ENDED in (before.stage, after.stage):
        return
    number, node = getattr(message, "attempt", None), getattr(message, "node", None)
    if type(message) is not given.NodeJoined:
        if node is not None and node not in before.members:
            return
        of = before.attempt
        if number is not None and (of is None or of.number != number or not of.is_running):
            return
    for wrong in rule(Decided(before, after, todo, now_s), message):
        raise Violation("what is reported has its effect", f"{wrong}: {message}")


# Nodes


def _node_joined(its: Decided, message: given.NodeJoined) -> Iterator[str]:
    node, before = message.node, its.before
    was, now = before.members.table.get(node), its.after.members.table.get(node)
    allocation = message.allocation or (was.allocation if was is not None else "")
    if was is None or was.allocation != allocation:
        yield from _stranger_joined(its, message, allocation)
        return
    if now is None or (was.phase is Phase.OUT and its.is_leaving(node)):
        return
    if was.phase in _GONE:
        if not was.is_lost:
            if its.records("node_back", node=node):
                yield f"{node} was out for good, and is back"
        elif was.returns >= MAX_RETURNS:
            if not its.dismisses(node):
                yield f"{node} has come back too often, and its runner stays"
        elif not any(_is_question(command, do.Purpose.RETURN, node) for command in its.todo):
            yield f"the scheduler is not asked about {node}"
        return
    of = before.attempt
    trains = before.stage is Stage.ATTEMPT and of is not None and node in of.nodes
    if message.problem is not None:
        if not its.dismisses(node):
            yield f"{node} has a problem, and its runner stays"
        if not its.records("fault", node=node, reason=message.problem):
            yield "the problem is not recorded"
    elif not its.records("node_ready", node=node, warm=message.is_warm):
        yield "it is not recorded that it is ready"
    if trains and its.is_same_attempt:
        yield from _rank_joined(its, message)
    elif not trains and message.attempt is not None and not its.orders(do.Order.KILL, node, message.attempt):
        yield "what it has of an earlier attempt is not ended"


def _rank_joined(its: Decided, message: given.NodeJoined) -> Iterator[str]:
    """A node of the attempt."""
    of, node = its.before.attempt, message.node
    assert of is not None
    if node in of.lost:
        return
    if message.attempt != of.number and of.phase in (AttemptPhase.RETURNING, *AT_WORK):
        if not of.faults and not its.records("fault", node=node):
            yield "it has lost its workers, and that is no fault"
    elif of.phase is AttemptPhase.KILLING and not its.orders(do.Order.KILL, node, of.number):
        yield "it is not told again to end its workers"


def _stranger_joined(its: Decided, message: given.NodeJoined, allocation: str) -> Iterator[str]:
    """A runner of an allocation in which its node is no member."""
    before, after, node = its.before, its.after, message.node
    was = before.members.table.get(node)
    booster = next((each for each in before.boosters if each.allocation == allocation), None)
    if booster is None:
        if not its.dismisses(node) or not its.records("problem", node=node):
            yield "it is unknown, and not sent away"
        elif allocation not in ("", *before.job.allocations.values()) and not its.asks_for(do.EndAllocation):
            yield "its allocation is not ended"
        return
    now = next((each for each in after.boosters if each.allocation == allocation), None)
    if now is None:
        return
    is_base = was is not None and all(each.allocation != was.allocation for each in before.boosters)
    if booster.phase is BoosterPhase.LEAVING or node in before.history.out or is_base:
        if not its.dismisses(node):
            yield "it cannot be used, and is not sent away"
    elif was is None and message.problem is None and not its.records("node_ready", node=node, allocation=allocation):
        yield "it is not recorded that it is ready"


def _is_question(command: do.Command, purpose: do.Purpose, node: str) -> bool:
    return type(command) is do.AskUnusable and command.purpose is purpose and node in command.nodes


def _node_warm(its: Decided, message: given.NodeWarm) -> Iterator[str]:
    was = its.before.members[message.node]
    if is_usable(was) and not was.is_warm and not its.records("node_ready", node=message.node, warm=True):
        yield "it is not recorded"


def _node_lost(its: Decided, message: given.NodeLost) -> Iterator[str]:
    node, before, after = message.node, its.before, its.after
    was, now = before.members[node], after.members.table.get(node)
    in_attempt = before.stage is Stage.ATTEMPT
    launch = before.launch
    if not in_attempt and launch.is_under_way and was.phase not in _GONE:
        is_asked = its.asks_for(do.AskLaunch) or bool(launch.failed) or was.phase is Phase.JOINING
        if now is not None and (now.phase is not Phase.JOINING or not is_asked) and after.launch.is_under_way:
            yield f"it may be lost with its launcher, and is {now}"
        return
    if was.phase not in (*_GONE, Phase.LEAVING) and not its.records("node_out", node=node, lost=True):
        yield "it is not recorded"
    if in_attempt:
        kind = FaultKind.PREEMPTED if its.is_leaving(node) else FaultKind.NODE_LOST
        yield from _rank_lost(its, node, kind, message.reason)


def _rank_lost(its: Decided, node: str, kind: str, reason: str) -> Iterator[str]:
    """The attempt has a fault where it needs the node."""
    of, attempt = its.before.attempt, its.after.attempt
    if of is None or attempt is None or not its.is_same_attempt or not of.is_running:
        return
    if node in its.before.holders:
        is_needed = of.phase in _BEFORE_CAUSE and not of.restored
    else:
        is_needed = node in of.nodes and node not in of.lost
    if is_needed and not its.records("fault", node=node, kind=kind, reason=reason):
        yield "its fault is not recorded"


def _node_broken(its: Decided, message: given.NodeBroken) -> Iterator[str]:
    node, before = message.node, its.before
    was = before.members[node]
    if was.phase is Phase.OUT:
        return
    if not its.dismisses(node):
        yield "its runner is not dismissed"
    if was.phase is not Phase.RETURNING and not its.records("node_out", node=node, reason=message.reason):
        yield "it is not recorded"
    if was.phase is not Phase.RETURNING and before.stage is Stage.ATTEMPT:
        kind = FaultKind.ENVIRONMENT if message.is_environment else FaultKind.RUNNER_LOST
        yield from _rank_lost(its, node, kind, message.reason)


def _isolation(its: Decided, message: given.IsolationChanged) -> Iterator[str]:
    if message.is_isolated and not its.asks_for(do.LetGo):
        yield "the launchers may end processes that another supervisor leads"
    if not message.is_isolated and its.before.is_isolated:
        for command in its.todo:
            if type(command) is do.Record and "come back" in command.fields.get("reason", ""):
                yield f"nodes have no time to come back: {dict(command.fields)}"


def _stood_still(its: Decided, message: given.StoodStill) -> Iterator[str]:
    """No deadline has passed meanwhile."""
    before, seconds = its.before, message.seconds
    if before.timer_s is not None and its.now_s - before.timer_s > PAUSE_S:
        seconds = min(seconds, its.now_s - before.timer_s)
    if before.stood_still_s is not None and its.now_s - before.stood_still_s < seconds:  # a part of it is known
        return
    for command in its.todo:
        if type(command) is do.Record and command.event in ("node_out", "fault"):
            yield f"what came meanwhile is not read yet: {command.event} {dict(command.fields)}"


def _launch_ended(its: Decided, message: given.LaunchEnded) -> Iterator[str]:
    before, after = its.before, its.after
    if not before.launch.is_under_way:
        return
    out = before.members.out()
    has_ended = message.has_ended or before.launch.has_ended or any(node not in out for node in message.failed)
    for node, _, _ in before.launch.doubtful if not has_ended else ():
        if after.members[node].phase is not Phase.OUT and not its.records("node_back", node=node):
            yield f"{node} was lost, and is {after.members[node].phase.value}"


_RULES: dict[type, Rule] = {
    given.NodeJoined: _node_joined,
    given.NodeWarm: _node_warm,
    given.NodeLost: _node_lost,
    given.NodeBroken: _node_broken,
    given.IsolationChanged: _isolation,
    given.StoodStill: _stood_still,
    given.LaunchEnded: _launch_ended,
    **attempt_rules.RULES,
    **answer_rules.RULES,
}
