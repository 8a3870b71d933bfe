"""What follows from an answer of the scheduler or the folder, and from what users ask."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core import commands as do
from launcher.core import inputs as given
from launcher.core.faults import FaultKind
from launcher.core.members import Phase
from launcher.core.state import AttemptPhase, Sigterm, Stage
from launcher.core.stop_reasons import StopReason
from simulation.decided import AT_WORK, Decided, Rule

_OVERRIDE = (None, StopReason.RESIZE, StopReason.HALT)  # stops that another reason replaces


# Answers


def _unusable(its: Decided, message: given.UnusableAnswered) -> Iterator[str]:
    before, after, of = its.before, its.after, its.before.attempt
    if message.purpose in (do.Purpose.START, do.Purpose.AGAIN):
        if before.stage is not Stage.ASKING or after.stage is not Stage.PROBING:
            return
        missing = {node for node in before.job.nodes if after.members[node].phase is Phase.JOINING}
        started = {node for command in its.todo if type(command) is do.StartRunners for node in command.nodes}
        if missing != started:
            yield f"runners of {sorted(started)} start, {sorted(missing)} are missing"
        yield from _are_out(its, message)
    elif message.purpose is do.Purpose.RETURN:
        yield from _return_judged(its, message)
    elif of is not None and message.error is None and message.asked[: len(of.nodes)] == of.nodes:
        is_failed = message.purpose is do.Purpose.AGENTS_FAILED and of.phase is AttemptPhase.EXPLAINING
        is_late = message.purpose is do.Purpose.LATE_AGENTS and of.phase in AT_WORK and not of.restored
        if is_failed or is_late:
            yield from _agents_unusable(its, message)


def _are_out(its: Decided, message: given.UnusableAnswered) -> Iterator[str]:
    for node, reason in message.unusable.items():
        if not its.dismisses(node):
            yield f"{node} is not out: {reason}"


def _return_judged(its: Decided, message: given.UnusableAnswered) -> Iterator[str]:
    for node in message.asked:
        was, now = its.before.members.table.get(node), its.after.members.table.get(node)
        if was is None or now is None or was.phase is not Phase.RETURNING:
            continue
        if message.error is not None or node in message.unusable:
            if not its.dismisses(node):
                yield f"{node} cannot be used, and its runner stays"
        elif was.ending is None:
            if not its.records("node_back", node=node):
                yield f"{node} can be used, and is not taken back"
        elif not its.orders(do.Order.KILL, node, was.ending):
            yield f"{node} is not told to end what it has"


def _agents_unusable(its: Decided, message: given.UnusableAnswered) -> Iterator[str]:
    """Nodes on which no agent can be started are out, and are the fault."""
    of = its.before.attempt
    assert of is not None
    for node in message.unusable:
        if node in of.lost or node not in (*of.nodes, *its.before.holders):
            continue
        is_leaving = its.is_leaving(node)
        if not is_leaving and not its.dismisses(node):
            yield f"no agent can be started on {node}, and its runner stays"
        kind = FaultKind.PREEMPTED if is_leaving else FaultKind.AGENT_LOST
        if not its.records("fault", node=node, kind=kind):
            yield f"no agent can be started on {node}, and that is no fault of kind {kind}"


def _explained(its: Decided, message: given.TerminationExplained) -> Iterator[str]:
    was, is_confirmed = its.before.requests, its.before.stage is Stage.CONFIRMING
    is_asked = was.sigterm in (Sigterm.ASKED, Sigterm.AGAIN)
    is_new = message.why == "cancel" and not was.is_cancelled and (is_asked or is_confirmed)
    if is_new and not its.records("stop_requested", reason=StopReason.CANCEL):
        yield "the job is not cancelled"
    is_first = was.sigterm is Sigterm.ASKED and message.why != "cancel" and was.stop in _OVERRIDE
    if is_first and not its.records("stop_requested"):
        yield "the job does not stop"
    if not is_asked and not is_confirmed and not was.is_halt_pending and its.records("stop_requested"):
        yield "nobody has asked, and the job stops"
    if is_confirmed and not its.asks_for(do.ProbeFolder):
        yield "it is still awaited"


def _time_left(its: Decided, message: given.TimeLeftAnswered) -> Iterator[str]:
    was, now = its.before.time_limit, its.after.time_limit
    is_up = now.is_near and not was.is_near and its.before.requests.stop in _OVERRIDE
    if is_up and not its.records("stop_requested", reason=StopReason.TIME_LIMIT):
        yield "the time is up, and the job does not stop"


def _folder_probed(its: Decided, message: given.FolderProbed) -> Iterator[str]:
    before, after = its.before, its.after
    if before.stage not in (Stage.PROBING, Stage.CLOSING) or its.asks_for(do.ProbeFolder):
        return
    if message.error is None:
        if after.stage is before.stage:
            yield "it can be written, and is still awaited"
    elif before.stage is after.stage is Stage.PROBING and its.records("problem") is bool(before.blocked):
        yield "it is recorded again" if before.blocked else "it is not recorded"


def _events_written(its: Decided, message: given.EventsWritten) -> Iterator[str]:
    of = its.before.attempt
    is_begun = of is not None and of.phase is AttemptPhase.RECORDING and its.before.stage is Stage.ATTEMPT
    if is_begun and its.asks_for(do.StartWorkers) and its.asks_for(do.StartAgents) is not its.before.job.has_checkpoint:
        yield "workers start without agents"


def _own_seen(its: Decided, message: given.OwnCheckpointsSeen) -> Iterator[str]:
    known_s = its.before.history.gains.file_s
    is_news = known_s is None or message.modified_s > known_s
    if its.records("own_checkpoint", file=message.file) is not is_news:
        yield "it is not recorded" if is_news else "it is recorded again"


# Boosters and users


def _allocation_asked(its: Decided, message: given.AllocationAsked) -> Iterator[str]:
    before, error = its.before, message.error
    is_news = error is not None and error != before.asking.error
    if its.records("problem", what="no booster can be asked for") is not is_news:
        yield "it is not recorded" if is_news else "it is recorded again"
    if error is not None and before.job.elastic.scale_up_snooze_s and its.records("booster_asked"):
        yield "the next is asked for too early"
    was = next((each for each in before.boosters if each.allocation == message.allocation), None)
    if was is None:
        return
    if its.records("booster_submitted", allocation=was.allocation, job_id=message.job_id) is not (error is None):
        yield "the scheduler's id is not recorded" if error is None else "it is recorded as submitted, and was refused"
    may_be_there = error is not None and not was.nodes and not was.is_end_sent
    is_unwanted = error is None and was.is_end_sent
    if (may_be_there or is_unwanted) and do.EndAllocation(allocation=was.allocation) not in its.todo:
        yield "the scheduler may have it, and it is not ended"


def _allocations_seen(its: Decided, message: given.AllocationsSeen) -> Iterator[str]:
    ended = {command.allocation for command in its.todo if type(command) is do.EndAllocation}
    for was in its.before.boosters:
        state = message.states.get(was.allocation)
        if state is given.AllocationState.ENDED:
            if its.records("booster_end", allocation=was.allocation) is was.has_ended:
                yield f"the end of {was.allocation} is recorded again" if was.has_ended else "its end is not recorded"
        elif was.is_end_sent and was.allocation not in ended:
            yield f"{was.allocation} is not ended again"
    there = {name for name, state in message.states.items() if state is not given.AllocationState.ENDED}
    for allocation in there - {each.allocation for each in its.before.boosters} - ended:
        yield f"nobody has asked for {allocation}, and it goes on"


def _terminated(its: Decided, message: given.Terminated) -> Iterator[str]:
    before = its.before
    member = before.members[message.node] if message.node is not None else None
    is_of_one = member is not None and any(each.allocation == member.allocation for each in before.boosters)
    if is_of_one and its.asks_for(do.AskWhyTerminated):
        yield "it concerns a booster only"
    is_news = before.requests.sigterm in (Sigterm.NONE, Sigterm.KNOWN) and not before.requests.is_cancelled
    if is_news and not is_of_one and not its.asks_for(do.AskWhyTerminated):
        yield "its reason is not asked for"


def _time_warned(its: Decided, message: given.TimeWarned) -> Iterator[str]:
    was = its.before.time_limit
    if not was.is_near and was.ask_s is not None and not its.asks_for(do.AskTimeLeft):
        yield "the scheduler is not asked for the time left"


def _cancel_asked(its: Decided, message: given.CancelAsked) -> Iterator[str]:
    if its.records("stop_requested", reason=StopReason.CANCEL) is its.before.requests.is_cancelled:
        yield "it is recorded again" if its.before.requests.is_cancelled else "it is not recorded"


RULES: dict[type, Rule] = {
    given.UnusableAnswered: _unusable,
    given.TerminationExplained: _explained,
    given.TimeLeftAnswered: _time_left,
    given.FolderProbed: _folder_probed,
    given.EventsWritten: _events_written,
    given.OwnCheckpointsSeen: _own_seen,
    given.AllocationAsked: _allocation_asked,
    given.AllocationsSeen: _allocations_seen,
    given.Terminated: _terminated,
    given.TimeWarned: _time_warned,
    given.CancelAsked: _cancel_asked,
}
