"""What each decision of a supervisor must keep to: its commands and events, by its journal.

A rule gives what is wrong, in words. It knows nothing of how the core keeps its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.core import commands as do
from launcher.core import inputs as given
from launcher.core.attempt import FOLDER_TIMEOUT_S, STACKS_TIMEOUT_S, START_TIMEOUT_S
from launcher.core.liveness import RETURN_S
from launcher.core.recovery import MAX_DELAY_S
from launcher.core.stages import SCHEDULER_TIMEOUT_S
from launcher.core.stop_reasons import StopReason
from launcher.core.teardown import AGENT_FLUSH_S, KILL_CONFIRM_S, RECONNECT_S
from simulation.effect_rules import EFFECTS, Decided
from simulation.journal import Journal
from simulation.violation import Violation

_GROWN_S = 0.001  # what a sum of times may differ by
_LATE_S = 100.0  # a timer that is set for the past
# Events, and the commands that they stand for.
_DONE: dict[str, tuple[type, ...]] = {
    "attempt_start": (do.Settle,),
    "resize": (do.Settle,),
    "booster_asked": (do.Settle,),
    "holders_released": (do.KillAgents, do.Send, do.StartAgents),
}
# What a supervisor waits for at most, after a command or an event.
_WAITS_S: dict[Any, float] = {
    "attempt_start": FOLDER_TIMEOUT_S,
    "backoff": MAX_DELAY_S,
    do.ProbeFolder: FOLDER_TIMEOUT_S,
    do.StartWorkers: START_TIMEOUT_S,
    do.AwaitReturn: RETURN_S,
    do.Purpose.SCHEDULER: SCHEDULER_TIMEOUT_S,
    do.Order.STOP: 600.0,
    do.Order.DUMP: STACKS_TIMEOUT_S,
    do.Order.RELEASE_AGENT: AGENT_FLUSH_S,
    do.Order.FINISH_AGENT: AGENT_FLUSH_S,
    do.Order.KILL: max(KILL_CONFIRM_S, RECONNECT_S),  # the process may have stood still
}
_OF_AGENTS = (do.Order.RELEASE_AGENT, do.Order.FINISH_AGENT, do.Order.RENEW_AGENT)
_ABOUT_AGENTS = (do.Purpose.LATE_AGENTS, do.Purpose.AGENTS_FAILED)


def check_decision(journal: Journal, message: given.Input, todo: tuple[do.Command, ...], now_s: float) -> None:
    """Checks a decision.

    Args:
        journal: of the supervisor, before this decision.
        message: its input.
        todo: its commands.
        now_s: its time.

    Raises:
        Violation: it is wrong.
    """
    if journal.is_over:
        if todo:
            raise Violation("nothing outlives the job", f"commands after EndJob: {todo}")
        return
    its = Decided(todo)
    for wrong in _effects(journal, message, its):
        raise Violation("what is reported has its effect", f"{wrong}: {message}")
    for record in its.records:
        for wrong in _what_is_recorded(journal, record.event, record.fields, its):
            raise Violation("what is recorded is done", f"{wrong}: {record.event} {dict(record.fields)}")
    for wrong in _orders(journal, its):
        raise Violation("each order reaches its nodes", wrong)
    _check_timer(journal, message, its, now_s)


def _effects(journal: Journal, message: given.Input, its: Decided) -> Iterator[str]:
    """What follows from an input of a node that the supervisor knows, about the attempt that runs."""
    rule = EFFECTS.get(type(message))
    if rule is None or its.has(do.EndJob):
        return
    number, node = getattr(message, "attempt", None), getattr(message, "node", None)
    is_known = node in (None, *journal.there, *journal.nodes) and (
        number is None or (journal.runs and number == journal.number)
    )
    if is_known or type(message) is given.NodeJoined:
        yield from rule(journal, message, its)


def _what_is_recorded(journal: Journal, event: str, fields: Any, its: Decided) -> Iterator[str]:
    is_requeued = its.has(do.Requeue) or journal.asked[do.Requeue] or journal.is_cancelled
    is_departure = event == "node_leaving" and fields.get("attempt") is not None
    for kind in _DONE.get("resize" if is_departure else event, ()):
        if not its.has(kind):
            yield f"no {kind.__name__}"
    if event == "node_out" and not fields.get("lost") and not its.dismisses(fields["node"]):
        yield "its runner is not dismissed"
    elif event == "attempt_start" and journal.has_launcher and not its.has(do.ReleaseRunners):
        yield "the runners' launcher may still end its runners"
    elif event == "problem" and fields["what"].startswith("runners are started again: "):
        started = {node for each in its.of(do.StartRunners) for node in each.nodes}
        if not started or started != {each.node for each in its.of(do.Leave)} or not its.has(do.ReleaseRunners):
            yield f"{sorted(started)} start"
    elif event == "problem" and "nothing is saved until the next attempt" in fields["what"]:
        if not its.has(do.KillAgents):
            yield "agents that are given up are not ended"
    elif event == "resize" and journal.is_ending:
        yield "the attempt is ending"
    elif event == "stop_requested" and fields["reason"] == StopReason.BATCH_SCRIPT_LOST and not is_requeued:
        yield "the job is not requeued at once"


def _orders(journal: Journal, its: Decided) -> Iterator[str]:
    """Orders go to all nodes of their attempt, and those about its agents to its holders too."""
    number, nodes, holders = journal.number, journal.nodes, journal.holders
    if (start := its.record("attempt_start")) is not None:
        number, nodes = start.fields["attempt"], tuple(start.fields["nodes"])
        holders = tuple(start.fields.get("holders") or ())
    gone = {each.fields["node"] for each in its.records if each.event == "node_out"}
    connected = {node for node in holders if node in journal.there and node not in gone}
    is_released = its.record("holders_released") is not None
    is_anew = its.has(do.ReleaseRunners) or journal.asked[do.Purpose.AGAIN]
    for command in its.todo:
        match command:
            case do.Send(attempt=of, order=order) if of == number:
                is_again = order is do.Order.KILL and len(command.nodes) == 1  # to a node that has connected again
                if not is_again and not {*nodes} <= {*command.nodes}:
                    yield f"{command}, and the attempt is on {nodes}"
                if order in _OF_AGENTS and not is_released and not connected <= {*command.nodes}:
                    yield f"{command}, and {holders} hold something"
            case do.StartWorkers() if (command.nodes, command.attempt) != (nodes, number):
                yield f"{command}, and attempt {number} is on {nodes}"
            case do.StartAgents():
                if (command.nodes, command.attempt) != (nodes, number) or not {*command.holders} <= {*holders}:
                    yield f"{command}, and attempt {number} is on {nodes}, with {holders}"
                if {*command.allocations} != {*command.nodes, *command.holders}:
                    yield f"{command} knows allocations of {sorted(command.allocations)}"
            case do.AskUnusable():
                if not {*command.nodes} <= {*command.allocations}:
                    yield f"{command} knows allocations of {sorted(command.allocations)}"
                if command.purpose in _ABOUT_AGENTS and not {*nodes} <= {*command.nodes}:
                    yield f"{command}, and the attempt is on {nodes}"
            case do.StartRunners() if journal.has_launcher and not is_anew:
                yield f"{command}, and another launcher is there"


def _check_timer(journal: Journal, message: given.Input, its: Decided, now_s: float) -> None:
    """Every wait has its deadline: the timer is set for the moment at which the job no longer waits."""
    timers = its.of(do.SetTimer)
    timer_s = timers[-1].at_s if timers else None if type(message) is given.TimerFired else journal.timer_s
    if timers and timer_s is not None and timer_s < now_s - _LATE_S:
        raise Violation("no spinning", f"a timer {now_s - timer_s:.0f} s in the past")
    is_isolated = message.is_isolated if type(message) is given.IsolationChanged else journal.is_isolated
    if is_isolated or its.has(do.EndJob) or its.record("attempt_end") is not None:
        return
    for command in its.todo:
        wait_s = _WAITS_S.get(_kind(command))
        if wait_s is None or (timer_s is not None and timer_s <= now_s + wait_s + _GROWN_S):
            continue
        is_again = type(command) is do.Send and (journal.is_ending or len(command.nodes) == 1)
        if not is_again and not journal.asked[do.AskWhyTerminated]:  # `is_again`: to a node that has connected again
            raise Violation("every wait has its deadline", f"{command} at {now_s}, and the timer is at {timer_s}")


def _kind(command: do.Command) -> Any:
    match command:
        case do.Record():
            return command.event
        case do.Send():
            return command.order
        case do.AskUnusable():
            return command.purpose
        case _:
            return type(command)
