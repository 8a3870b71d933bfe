"""A decision does what it records, asks for the answer that its stage waits for, and gives its phase's orders.

Each order goes to all nodes that it concerns.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core import commands as do
from launcher.core.state import Attempt, AttemptPhase, RequeuePhase, Sigterm, Stage, State
from launcher.core.stop_reasons import StopReason
from simulation.decided import AT_WORK
from simulation.violation import Violation

_ANSWERS: dict[Stage, type] = {
    Stage.ASKING: do.AskUnusable,
    Stage.PROBING: do.ProbeFolder,
    Stage.SCHEDULER: do.AskUnusable,
    Stage.CONFIRMING: do.AskWhyTerminated,
    Stage.CLOSING: do.ProbeFolder,
    Stage.REQUEUEING: do.Requeue,
}
_STARTED_AGAIN = "runners are started again: "
# Events, and the commands that they stand for.
_DONE: dict[str, tuple[type, ...]] = {
    "attempt_start": (do.Settle,),
    "resize": (do.Settle,),
    "booster_asked": (do.Settle,),
    "holders_released": (do.KillAgents, do.Send, do.StartAgents),
}
# Phases that begin with an order to the nodes.
_ORDERS: dict[AttemptPhase, tuple[do.Order, ...]] = {
    AttemptPhase.JUDGING: (do.Order.DUMP,),
    AttemptPhase.RELEASING: (do.Order.RELEASE_AGENT, do.Order.FINISH_AGENT),
    AttemptPhase.KILLING: (do.Order.KILL,),
}
_MAY_START_AGENTS = (AttemptPhase.RECORDING, AttemptPhase.RETURNING, *AT_WORK)
_OF_ALL = (
    do.Order.RELEASE_AGENT,
    do.Order.FINISH_AGENT,
    do.Order.KILL,
    do.Order.RENEW_AGENT,
)  # also of nodes that only hold something


def check_commands(before: State, after: State, todo: tuple[do.Command, ...]) -> None:
    """Checks the commands of a decision.

    Raises:
        Violation: one is missing.
    """
    if not todo and before.stage is after.stage and before.again_s == after.again_s:
        return
    kinds = {type(command) for command in todo}
    _check_question(before, after, kinds)
    for command in todo:
        if type(command) is do.Record:
            _check_done(command, todo, kinds)
    attempt = after.attempt
    if attempt is not None and after.stage is Stage.ATTEMPT:
        for wrong in _of_orders(before, after, attempt, todo):
            raise Violation("each phase gives its orders", wrong)
    is_asked = after.requests.sigterm in (Sigterm.ASKED, Sigterm.AGAIN)
    if is_asked and after.requests.sigterm is not before.requests.sigterm and do.AskWhyTerminated not in kinds:
        raise Violation("what is recorded is done", "the reason of a SIGTERM is awaited, and nobody asks")


def _check_question(before: State, after: State, kinds: set[type]) -> None:
    """A stage begins with its question, and asks again when it is time."""
    question = _ANSWERS.get(after.stage)
    if question is None or question in kinds:
        return
    if after.stage is not before.stage:
        is_asked = after.stage is Stage.REQUEUEING and before.requeue is RequeuePhase.ASKED
        if not is_asked:
            raise Violation("the stage tells what is waited for", f"{after.stage}, and nobody asks")
    elif after.again_s is None and before.again_s is not None and after.blocked:
        raise Violation("the stage tells what is waited for", f"{after.stage}, and nobody asks again")


def _check_done(record: do.Record, todo: tuple[do.Command, ...], kinds: set[type]) -> None:
    is_departure = record.event == "node_leaving" and record.fields.get("attempt") is not None
    missing = [kind.__name__ for kind in _DONE.get("resize" if is_departure else record.event, ()) if kind not in kinds]
    if missing:
        raise Violation("what is recorded is done", f"{dict(record.fields)} without {missing}")
    if record.event != "problem" or not record.fields["what"].startswith(_STARTED_AGAIN):
        return
    started = {node for command in todo if type(command) is do.StartRunners for node in command.nodes}
    left = {command.node for command in todo if type(command) is do.Leave}
    if not started or started != left or do.ReleaseRunners not in kinds:
        raise Violation("what is recorded is done", f"{record.fields['what']}: {sorted(started)}, ended {sorted(left)}")


def _of_orders(before: State, after: State, attempt: Attempt, todo: tuple[do.Command, ...]) -> Iterator[str]:
    of = before.attempt
    is_same = of is not None and of.number == attempt.number
    is_begun = not is_same or of is None or of.phase is not attempt.phase
    sent = {command.order for command in todo if type(command) is do.Send and command.attempt == attempt.number}
    kinds = {type(command) for command in todo}
    orders = _ORDERS.get(attempt.phase, ())
    if is_begun and orders and not sent.intersection(orders):
        yield f"{attempt.phase.value} begins without {orders[0].value}"
    if is_begun and attempt.phase is AttemptPhase.STARTING and do.StartWorkers not in kinds:
        yield "an attempt starts without workers"
    if is_begun and attempt.phase is AttemptPhase.KILLING and after.job.has_checkpoint and do.KillAgents not in kinds:
        yield "its agents are not killed"
    was_sent = of.stop_sent if is_same and of is not None else None
    if attempt.stop_sent not in (None, was_sent) and do.Order.STOP not in sent:
        yield "the stop is not passed on"
    stop = after.requests.stop
    is_due = stop is not None and (stop != StopReason.RESIZE or after.resize.is_written)
    if is_due and attempt.phase in AT_WORK and attempt.stop_sent != stop:
        yield f"{stop} is asked for, and ranks do not stop"
    everyone = {*attempt.nodes, *before.holders, *after.holders}
    for command in todo:
        if type(command) is do.Send and command.attempt == attempt.number:
            yield from _of_send(command, attempt, after)
        elif type(command) is do.StartWorkers:
            if (command.nodes, command.attempt) != (attempt.nodes, attempt.number):
                yield f"{command} of attempt {attempt.number} on {attempt.nodes}"
        elif type(command) is do.StartAgents:
            if is_same and of is not None and of.phase not in _MAY_START_AGENTS:
                yield f"{command} in an attempt that was {of.phase.value}"
            if (command.nodes, command.attempt) != (attempt.nodes, attempt.number):
                yield f"{command} of attempt {attempt.number} on {attempt.nodes}"
            if command.holders != after.holders or command.generation != after.agents.generation:
                yield f"{command}, with {after.holders} and generation {after.agents.generation}"
            if {*command.allocations} != {*command.nodes, *command.holders}:
                yield f"{command} knows allocations of {sorted(command.allocations)}"
        elif type(command) is do.AskUnusable and not {*command.nodes} <= {*command.allocations}:
            yield f"{command} knows allocations of {sorted(command.allocations)}"
        elif type(command) is do.AskUnusable:
            is_whole = {*attempt.nodes} <= {*command.nodes} <= everyone
            if command.purpose is not do.Purpose.RETURN and not is_whole:
                yield f"{command} of attempt {attempt.number} on {attempt.nodes}"


def _of_send(command: do.Send, attempt: Attempt, after: State) -> Iterator[str]:
    if command.order is do.Order.KILL and len(command.nodes) == 1:
        return  # to a node that has connected again
    if not {*attempt.nodes} <= {*command.nodes}:
        yield f"{command} of attempt {attempt.number} on {attempt.nodes}"
    if command.order in _OF_ALL and not {*after.holders} <= {*command.nodes}:
        yield f"{command}, and {after.holders} hold something"
