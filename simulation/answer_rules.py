"""What the state must be after an answer of the scheduler or the folder, and after what users ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from launcher.core import commands as do
from launcher.core import inputs as given
from launcher.core.faults import FaultKind
from launcher.core.members import Phase
from launcher.core.stages import FOLDER_AGAIN_S, SCHEDULER_AGAIN_S, SCHEDULER_SETTLE_S
from launcher.core.state import AttemptPhase, BoosterPhase, RequeuePhase, Sigterm, Stage
from launcher.core.stop_reasons import StopReason
from simulation.decided import AT_WORK, Decided, Rule

_OVERRIDE = (None, StopReason.RESIZE, StopReason.HALT)  # stops that another reason replaces
_GONE = (Phase.OUT, Phase.RETURNING)
_NEXT = {Sigterm.NONE: Sigterm.ASKED, Sigterm.KNOWN: Sigterm.AGAIN}  # after a SIGTERM


# Answers


def _unusable(its: Decided, message: given.UnusableAnswered) -> Iterator[str]:
    before, after = its.before, its.after
    if message.purpose in (do.Purpose.START, do.Purpose.AGAIN):
        if before.stage is not Stage.ASKING:
            return
        if after.stage is Stage.ASKING:
            yield "an answer is still awaited"
        for node, reason in message.unusable.items():
            if after.members[node].phase is not Phase.OUT or after.members[node].is_lost:
                yield f"{node} is not out: {reason}"
        missing = {node for node in before.job.nodes if after.members[node].phase is Phase.JOINING}
        started = {node for command in its.todo if type(command) is do.StartRunners for node in command.nodes}
        if after.stage is Stage.PROBING and (missing != started or after.launch.is_under_way is not bool(missing)):
            yield f"runners of {sorted(started)} start, {sorted(missing)} are missing: {after.launch}"
    elif message.purpose is do.Purpose.SCHEDULER and before.stage is Stage.SCHEDULER is after.stage:
        wait_s = SCHEDULER_SETTLE_S if message.error is None else SCHEDULER_AGAIN_S
        if (after.blocked, after.again_s) != (message.error or "", its.now_s + wait_s):
            yield f"the wait for the scheduler is {after.again_s}, {after.blocked!r}"
        if message.error is None and after.deadline_s is not None:
            yield "the scheduler has answered, and has a deadline"
    elif message.purpose is do.Purpose.RETURN:
        yield from _return_judged(its, message)
    elif message.purpose is do.Purpose.AGENTS_FAILED:
        yield from _failure_explained(its, message)
    elif message.purpose is do.Purpose.LATE_AGENTS:
        of = before.attempt
        if of is not None and _is_about(of, message) and of.phase in AT_WORK and not of.restored:
            yield from _agents_unusable(its, message)


def _is_about(of: Any, message: given.UnusableAnswered) -> bool:
    return message.asked[: len(of.nodes)] == of.nodes


def _return_judged(its: Decided, message: given.UnusableAnswered) -> Iterator[str]:
    for node in message.asked:
        was, now = its.before.members.table.get(node), its.after.members.table.get(node)
        if was is None or now is None or was.phase is not Phase.RETURNING:
            continue
        if message.error is not None or node in message.unusable:
            if now.phase is not Phase.OUT or now.is_lost or not its.dismisses(node):
                yield f"{node} cannot be used, and is {now}"
        elif was.ending is None:
            if now.phase in _GONE or not its.records("node_back", node=node):
                yield f"{node} can be used, and is {now}"
        elif not its.orders(do.Order.KILL, node, was.ending):
            yield f"{node} is not told to end what it has"


def _failure_explained(its: Decided, message: given.UnusableAnswered) -> Iterator[str]:
    of, attempt = its.before.attempt, its.after.attempt
    if of is None or attempt is None or of.phase is not AttemptPhase.EXPLAINING or not _is_about(of, message):
        return
    if not its.is_same_attempt or attempt.phase is AttemptPhase.EXPLAINING:
        yield "the reason is known, and is still awaited"
    elif message.error is not None:
        if attempt.faults[0].kind != FaultKind.SCHEDULER_LOST:
            yield f"the scheduler does not answer, and the fault is {attempt.faults[0].kind}"
    elif message.unusable:
        yield from _agents_unusable(its, message)
    elif attempt.faults[0] != of.faults[0]:
        yield f"no node is to blame, and the fault is {attempt.faults[0]}"


def _agents_unusable(its: Decided, message: given.UnusableAnswered) -> Iterator[str]:
    """Nodes on which no agent can be started are out, and are the fault."""
    of, attempt = its.before.attempt, its.after.attempt
    assert of is not None and attempt is not None
    for node in message.unusable:
        if node in of.lost or node not in (*of.nodes, *its.before.holders):
            continue
        now = its.after.members.table.get(node)
        if now is not None and (now.phase is not Phase.OUT or now.is_lost is not its.is_leaving(node)):
            yield f"no agent can be started on {node}, and it is {now}"
        kind = FaultKind.PREEMPTED if its.is_leaving(node) else FaultKind.AGENT_LOST
        if its.is_same_attempt and not any((each.node, each.kind) == (node, kind) for each in attempt.faults):
            yield f"no agent can be started on {node}, and that is no fault of kind {kind}"


def _explained(its: Decided, message: given.TerminationExplained) -> Iterator[str]:
    was, now = its.before.requests, its.after.requests
    if was.sigterm in (Sigterm.ASKED, Sigterm.AGAIN):
        if now.sigterm is not Sigterm.KNOWN:
            yield "it is not known"
        if message.why == "cancel":
            if not now.is_cancelled or not (
                was.is_cancelled or its.records("stop_requested", reason=StopReason.CANCEL)
            ):
                yield "the job is not cancelled"
        elif was.sigterm is Sigterm.AGAIN:
            if its.before.stage is not Stage.CONFIRMING and (now.stop, now.is_cancelled) != (
                was.stop,
                was.is_cancelled,
            ):
                yield f"the job was not cancelled meanwhile, and {now}"
        elif was.stop in _OVERRIDE and (now.stop != message.why or not its.records("stop_requested")):
            yield f"the job stops for {now.stop}"
    elif its.before.stage is not Stage.CONFIRMING and now != was:
        yield f"nobody has asked, and {now}"
    if its.before.stage is Stage.CONFIRMING is its.after.stage:
        yield "it is still awaited"


def _time_left(its: Decided, message: given.TimeLeftAnswered) -> Iterator[str]:
    was, now = its.before.time_limit, its.after.time_limit
    if was.is_near:
        return
    if not now.is_near and now.ask_s is None and not its.asks_for(do.AskTimeLeft):
        yield "nobody asks again"
    if now.is_near and its.before.requests.stop in _OVERRIDE and its.after.requests.stop != StopReason.TIME_LIMIT:
        yield "the time is up, and the job does not stop"
    if message.left_s is not None and was.half_s is not None and now.half_s != was.half_s:
        yield "half of the job's time is another"


def _folder_probed(its: Decided, message: given.FolderProbed) -> Iterator[str]:
    before, after = its.before, its.after
    if before.stage not in (Stage.PROBING, Stage.CLOSING) or its.asks_for(do.ProbeFolder):
        return
    if message.error is None:
        if after.stage is before.stage:
            yield "it can be written, and is still awaited"
        if before.stage is Stage.PROBING and after.stage is Stage.GATHERING and after.blocked:
            yield f"it can be written: {after.blocked}"
    elif after.stage is before.stage:
        if (after.blocked, after.again_s) != (message.error, its.now_s + FOLDER_AGAIN_S):
            yield f"it is tried again at {after.again_s}: {after.blocked!r}"
        is_first = before.stage is Stage.PROBING and not before.blocked
        if is_first and not its.records("problem"):
            yield "it is not recorded"
        if before.stage is Stage.PROBING and before.blocked and its.records("problem"):
            yield "it is recorded again"


def _events_written(its: Decided, message: given.EventsWritten) -> Iterator[str]:
    before, after = its.before, its.after
    if after.unsettled > max(0, before.unsettled - 1) + sum(type(each) is do.Settle for each in its.todo):
        yield f"{after.unsettled} answers are awaited, before {before.unsettled}"
    if before.unsettled > 1 or not its.is_same_attempt:
        return
    if (
        before.requests.stop == StopReason.RESIZE
        and after.requests.stop == StopReason.RESIZE
        and not after.resize.is_written
    ):
        yield "the resize is written, and that is not known"
    of = before.attempt
    if of is None or of.phase is not AttemptPhase.RECORDING or before.stage is not Stage.ATTEMPT:
        return
    starts = its.asks_for(do.StartWorkers)
    if starts and its.asks_for(do.StartAgents) is not before.job.has_checkpoint:
        yield "workers start without agents"


def _own_seen(its: Decided, message: given.OwnCheckpointsSeen) -> Iterator[str]:
    known_s = its.before.history.gains.file_s
    is_news = known_s is None or message.modified_s > known_s
    if its.records("own_checkpoint", file=message.file) is not is_news:
        yield "it is not recorded" if is_news else "it is recorded again"


def _requeued(its: Decided, message: given.Requeued) -> Iterator[str]:
    expected = RequeuePhase.DONE if message.error is None else RequeuePhase.REFUSED
    if its.after.requeue is not expected and not its.asks_for(do.Requeue):
        yield f"the requeue is {its.after.requeue.value}"


# Boosters and users


def _allocation_asked(its: Decided, message: given.AllocationAsked) -> Iterator[str]:
    before, after = its.before, its.after
    if before.asking.is_asked and after.asking.is_asked and not its.asks_for(do.AskAllocation):
        yield "an answer is still awaited"
    error = message.error or ("no allocation" if message.allocation is None else "")
    if error and after.asking.error != error:
        yield f"the error is {after.asking.error!r}"
    if error and after.asking.ask_s < its.now_s + before.job.elastic.scale_up_snooze_s:
        yield "the next is asked for too early"
    is_news = bool(error) and error != before.asking.error
    if its.records("problem", what="no booster can be asked for") is not is_news:
        yield "it is not recorded" if is_news else "it is recorded again"
    if message.allocation is not None and all(each.allocation != message.allocation for each in before.boosters):
        if all(each.allocation != message.allocation for each in after.boosters):
            yield "the booster is not known"
        if not its.records("booster_asked", allocation=message.allocation, nodes=before.job.booster_nodes):
            yield "the booster is not recorded"
    for kept in before.asking.waiting:
        if type(kept) is given.NodeJoined and kept.node not in after.members and not its.dismisses(kept.node):
            yield f"{kept.node} was kept for this answer, and is forgotten"


def _allocations_seen(its: Decided, message: given.AllocationsSeen) -> Iterator[str]:
    now = {each.allocation: each for each in its.after.boosters}
    for was in its.before.boosters:
        state, booster = message.states.get(was.allocation), now.get(was.allocation)
        if state is given.AllocationState.ENDED:
            if booster is not None and not booster.has_ended:
                yield f"the end of {was.allocation} is not known"
            if its.records("booster_end", allocation=was.allocation) is was.has_ended:
                yield f"the end of {was.allocation} is recorded again" if was.has_ended else "its end is not recorded"
        elif booster is None:
            yield f"{was.allocation} is forgotten"
        elif was.phase is BoosterPhase.LEAVING:
            is_ended = any(command == do.EndAllocation(allocation=was.allocation) for command in its.todo)
            if was.is_end_sent and not is_ended:
                yield f"{was.allocation} is not ended again"
        elif state is given.AllocationState.PREEMPTED:
            if booster.phase is not BoosterPhase.LEAVING:
                yield f"{was.allocation} is preempted, and {booster.phase.value}"
        elif state is given.AllocationState.RUNNING:
            if booster.phase is BoosterPhase.QUEUED or booster.running_s is None:
                yield f"{was.allocation} runs, and is {booster}"
            if was.running_s is not None and booster.running_s != was.running_s:
                yield f"{was.allocation} runs since {booster.running_s}, before {was.running_s}"
        elif booster.phase is BoosterPhase.RUNNING and was.phase is BoosterPhase.QUEUED:
            yield f"{was.allocation} is in the queue, and runs"

    there = {name for name, state in message.states.items() if state is not given.AllocationState.ENDED}
    unknown = there - {each.allocation for each in its.before.boosters} if not its.before.asking.is_asked else set()
    ended = {command.allocation for command in its.todo if type(command) is do.EndAllocation}
    for allocation in unknown - ended:
        yield f"nobody has asked for {allocation}, and it goes on"


def _terminated(its: Decided, message: given.Terminated) -> Iterator[str]:
    before, after = its.before, its.after
    member = before.members.table.get(message.node) if message.node is not None else None
    if message.node is not None and member is None:
        if message not in after.asking.waiting:
            yield "it is not kept for the booster that is asked for"
        return
    of = [each for each in before.boosters if member is not None and each.allocation == member.allocation]
    if of:
        now = [each for each in after.boosters if each.allocation == of[0].allocation]
        if now and now[0].phase is not BoosterPhase.LEAVING:
            yield f"its booster is {now[0].phase.value}"
        if after.requests.sigterm is not before.requests.sigterm:
            yield "it concerns a booster only"
    elif before.requests.sigterm in _NEXT and not before.requests.is_cancelled:
        is_asked = its.asks_for(do.AskWhyTerminated)
        if after.requests.sigterm is not _NEXT[before.requests.sigterm] or not is_asked:
            yield "its reason is not asked for"


def _time_warned(its: Decided, message: given.TimeWarned) -> Iterator[str]:
    was, now = its.before.time_limit, its.after.time_limit
    if was.is_near:
        return
    if not now.is_warned:
        yield "it is not known"
    if was.ask_s is not None and not its.asks_for(do.AskTimeLeft):
        yield "the scheduler is not asked for the time left"


def _cancel_asked(its: Decided, message: given.CancelAsked) -> Iterator[str]:
    if not its.after.requests.is_cancelled:
        yield "it is not known"
    if its.records("stop_requested", reason=StopReason.CANCEL) is its.before.requests.is_cancelled:
        yield "it is recorded again" if its.before.requests.is_cancelled else "it is not recorded"


RULES: dict[type, Rule] = {
    given.UnusableAnswered: _unusable,
    given.TerminationExplained: _explained,
    given.TimeLeftAnswered: _time_left,
    given.FolderProbed: _folder_probed,
    given.EventsWritten: _events_written,
    given.OwnCheckpointsSeen: _own_seen,
    given.Requeued: _requeued,
    given.AllocationAsked: _allocation_asked,
    given.AllocationsSeen: _allocations_seen,
    given.Terminated: _terminated,
    given.TimeWarned: _time_warned,
    given.CancelAsked: _cancel_asked,
}
