"""The stages of the job: from its start, through its attempts, to its end."""

from __future__ import annotations

from launcher.core import attempt, boosters, choice, departure, ending, launch, nodes, recovery, requests, resize
from launcher.core import inputs as given_
from launcher.core.commands import (
    AskUnusable,
    AskWhyTerminated,
    AwaitReturn,
    Dismiss,
    ProbeFolder,
    Purpose,
)
from launcher.core.faults import LOSSES_S, Fault, FaultKind
from launcher.core.frozen import replace
from launcher.core.members import Phase, is_usable
from launcher.core.outcomes import AttemptOutcome, JobOutcome
from launcher.core.rungs import Rung
from launcher.core.state import Resize, Sigterm, Stage
from launcher.core.stop_reasons import StopReason
from launcher.core.turn import Turn

NODE_START_TIMEOUT_S = 120.0
# Seconds to wait for missing nodes once enough nodes are ready. Longer for nodes that trained before, because they may
# have a step that exists nowhere else.
ALL_NODES_GRACE_S = 3.0
TRAINED_GRACE_S = 10.0
FOLDER_AGAIN_S = 0.5
SCHEDULER_TIMEOUT_S = 1800.0  # a controller may be restarted, or its backup may take over
SCHEDULER_AGAIN_S = 1.0
SCHEDULER_SETTLE_S = 5.0  # a controller that is back refuses steps until its nodes have registered (seen on 22.05)


def start(turn: Turn) -> None:
    """Handles the start of the job by the scheduler, the first or a later one."""
    job, history = turn.state.job, turn.state.history
    turn.state = replace(turn.state, rung=Rung.REQUEUE if history.next_attempt else Rung.START)
    if job.is_take_over:
        turn.state = replace(turn.state, rung=Rung.TAKEOVER)
    turn.record("job_start", **job.start)
    requests.record_again(turn)
    for what in job.warnings:
        turn.record("problem", what=what)
    if job.can_requeue:  # the local cluster's nodes are new each time
        _leave_out(turn, are_lost=False)
    _ask_unusable(turn, Purpose.START)


def take_over(turn: Turn, runners: tuple[str, ...]) -> None:
    """Takes over a running job from another supervisor."""
    job, running = turn.state.job, turn.state.history.running_attempt
    turn.state = replace(turn.state, rung=Rung.TAKEOVER)
    _leave_out(turn, are_lost=True)
    if turn.state.history.is_done:
        ending.finish(turn, JobOutcome.DONE, "")
        return
    boosters.ask_again(turn)
    turn.do(AwaitReturn(nodes=runners))
    turn.state = replace(turn.state, roll_call_s=turn.now_s + attempt.RETURN_S)
    if running is not None:
        attempt.resume(turn, running)
        turn.enter(Stage.ATTEMPT)
    silent = job.predecessor if job.is_predecessor_silent else None
    if silent is not None and silent in turn.state.members and (running is None or silent not in running.nodes):
        nodes.on_node_lost(turn, given_.NodeLost(node=silent, reason=attempt.PREDECESSOR_LOST))
    if running is None:
        probe(turn)


def _leave_out(turn: Turn, *, are_lost: bool) -> None:
    """Leaves out the nodes that are out according to the events."""
    for node, why in sorted(turn.state.history.out.items()):
        if node not in turn.state.members:
            continue
        is_lost = are_lost and why.is_lost
        turn.put_member(
            node,
            replace(
                turn.member(node),
                phase=Phase.OUT,
                reason=why.reason,
                is_lost=is_lost,
                is_environment=why.is_environment,
            ),
        )
        if not is_lost:
            turn.do(Dismiss(node=node, forget=True))


def _ends_as_asked(turn: Turn) -> bool:
    """Between attempts a request is carried out at once. While a SIGTERM is not explained, no attempt begins."""
    asked = turn.state.requests
    if requests.is_asked(asked):
        ending.finish_as_asked(turn)
        return True
    return False


def _ask_unusable(turn: Turn, purpose: Purpose) -> None:
    job = turn.state.job
    turn.do(AskUnusable(nodes=job.nodes, purpose=purpose, allocations=job.allocations))
    turn.enter(Stage.ASKING)


def asking(turn: Turn) -> None:
    _ends_as_asked(turn)


def probe(turn: Turn) -> None:
    """Waits until the job's folder can be written, because workers need it for their logs."""
    turn.state = replace(turn.state, is_waiting_told=False)
    turn.do(ProbeFolder(attempt=turn.state.history.next_attempt))
    turn.enter(Stage.PROBING, timeout_s=attempt.FOLDER_TIMEOUT_S)


def probing(turn: Turn) -> None:
    state = turn.state
    if _ends_as_asked(turn):
        return
    if turn.due(state.deadline_s):
        _give_up_folder(turn, state.blocked or "no answer")
    elif turn.due(state.again_s):
        turn.state = replace(turn.state, again_s=None)
        turn.do(ProbeFolder(attempt=state.history.next_attempt))


def _give_up_folder(turn: Turn, why: str) -> None:
    waited = f"the job's folder could not be written for {attempt.FOLDER_TIMEOUT_S:g} s ({why})"
    ending.finish(turn, JobOutcome.INTERNAL, f"{waited}; make room, submit again")


def on_folder_probed(turn: Turn, given: given_.FolderProbed) -> None:
    state = turn.state
    if state.stage not in (Stage.PROBING, Stage.CLOSING):
        return
    if given.error is not None:
        if state.stage is Stage.PROBING and not state.is_waiting_told:
            what = f"the job's folder cannot be written ({given.error}); no attempt starts before: make room"
            turn.record("problem", what=what)
        turn.state = replace(turn.state, is_waiting_told=True, blocked=given.error, again_s=turn.now_s + FOLDER_AGAIN_S)
    elif state.stage is Stage.CLOSING:
        ending.close(turn)
    else:
        turn.state = replace(turn.state, full_s=None, blocked="")
        turn.enter(Stage.GATHERING)


def gathering(turn: Turn) -> None:
    """Waits until all nodes that may train are ready.

    Before the first attempt a moment longer, to have a choice of nodes.
    """
    if _ends_as_asked(turn):
        return
    launch.advance(turn)
    state = turn.state
    members, job = state.members, state.job
    if members.joining_count and members.usable + members.joining_count >= job.sizes[-1]:
        is_full = members.usable >= job.base_size
        if is_full is (state.full_s is None):
            turn.state = replace(turn.state, full_s=turn.now_s if is_full else None)
        full_s = turn.state.full_s
        until_s = state.stage_s + NODE_START_TIMEOUT_S if full_s is None else full_s + _grace_s(turn)
        if not turn.due(until_s):
            return
        if not is_full:
            for node in launch.joining(turn):
                late = f"its runner did not report within {NODE_START_TIMEOUT_S:g} s; see log/runner-{node}.log"
                turn.put_out(node, late)
    if turn.state.requests.sigterm is Sigterm.ASKED:
        return
    until_s = state.stage_s + job.elastic.faulty_scale_down_timeout_s
    if turn.now_s >= until_s or not resize.awaits_booster(turn):
        until_s = turn.now_s
    if turn.due(max(until_s, _return_until_s(turn))):
        _begin_attempt(turn)


def _return_until_s(turn: Turn) -> float:
    """The time until which lost nodes may come back, if several that hold the newest step were lost at once.

    Together they may have what no redundancy can replace, and what cut them off may be over in a moment.
    """
    state = turn.state
    held = [node for node in state.history.trained if node in state.members and state.members[node].is_lost]
    if state.lost_s is None or not state.job.has_checkpoint or len(held) < 2 or not _has_base(turn):
        return turn.now_s
    return state.lost_s + LOSSES_S


def _grace_s(turn: Turn) -> float:
    """Seconds to wait for runners that are still missing, although enough nodes are ready."""
    state = turn.state
    there = [state.members[node] for node in state.history.trained if node in state.members]
    if state.job.has_checkpoint and any(member.phase is Phase.JOINING for member in there):
        return TRAINED_GRACE_S
    return ALL_NODES_GRACE_S if state.is_patient else 0.0


def _begin_attempt(turn: Turn) -> None:
    launch.end(turn)
    turn.state = replace(turn.state, is_patient=False)
    _choose(turn)


def _choose(turn: Turn) -> None:
    """Chooses the next attempt's nodes. A spare replaces a node on which attempts failed repeatedly."""
    state = turn.state
    job, before = state.job, state.positions
    suspects = state.history.gains.suspects
    nodes, chosen = choice.candidates(turn), choice.best(turn)
    if chosen is None:
        out = state.members.out()
        why = ", ".join(f"{node} ({reason})" for node, reason in out.items())
        reason = f"{len(job.nodes)} nodes, {job.sizes[-1]} needed, out of use: {why}"
        unprepared = bool(out) and all(state.members[node].is_environment for node in out)
        fault = Fault(kind=FaultKind.ENVIRONMENT if unprepared else FaultKind.START_TIMEOUT, node=None, reason=reason)
        turn.record_fault(fault)
        _fail(turn, fault, ())
        return
    for node in before:
        if node in suspects and node not in chosen.nodes and node in nodes and is_usable(state.members[node]):
            what = "attempts failed on it again and again: a spare takes its place"
            turn.record("problem", node=node, what=what)
    departure.on_choice(turn, chosen.nodes)
    rung = choice.rung_of(state.rung, before, chosen)
    turn.state = replace(
        turn.state, positions=chosen.nodes, holders=choice.holders(turn, chosen.nodes), fault=None, resize=Resize()
    )
    members, gone = turn.state.members, {*chosen.nodes, *turn.state.history.leaving}
    spares = [node for node in nodes if node not in gone and is_usable(members[node])]
    attempt.begin(turn, chosen.nodes, rung, spares)
    turn.enter(Stage.ATTEMPT)


def attempting(turn: Turn) -> None:
    if attempt.cannot_be_recorded(turn):
        _give_up_folder(turn, "no room for the attempt's start")
        return
    attempt.advance(turn)
    if turn.attempt.is_running:
        return
    ended = turn.attempt
    for node in ended.nodes:
        if turn.member(node).phase is Phase.TRAINING:
            turn.put_member(node, replace(turn.member(node), phase=Phase.READY))
    turn.record("attempt_end", attempt=ended.number, outcome=ended.outcome, step=ended.step)
    if turn.state.requests.stop == StopReason.RESIZE:
        turn.requests = replace(turn.requests, stop=None)
    if ended.outcome is AttemptOutcome.DONE:
        ending.finish(turn, JobOutcome.DONE, "")
    elif ended.outcome is AttemptOutcome.FAULT:
        _fail(turn, ended.faults[0], ended.nodes)
    elif ended.outcome is AttemptOutcome.RESIZED:
        turn.state = replace(turn.state, rung=None)
        if not _ends_as_asked(turn):
            probe(turn)
    else:
        ending.finish_as_asked(turn)


def _ask_scheduler(turn: Turn) -> None:
    nodes = recovery.usable(turn)
    allocations = {node: turn.member(node).allocation for node in nodes}
    turn.do(AskUnusable(nodes=nodes, purpose=Purpose.SCHEDULER, allocations=allocations))


def _fail(turn: Turn, fault: Fault, nodes: tuple[str, ...]) -> None:
    """Handles the failure of an attempt, or of its beginning."""
    turn.state = replace(turn.state, fault=fault, fault_nodes=nodes)
    turn.enter(Stage.DECIDING)


def deciding(turn: Turn) -> None:
    """Waits while a SIGTERM is not explained, because the job may have to end."""
    state = turn.state
    if state.requests.sigterm is Sigterm.ASKED or state.fault is None:
        return
    if _ends_as_asked(turn):
        return
    if state.fault.kind == FaultKind.SCHEDULER_LOST:
        turn.state = replace(turn.state, blocked="")
        _ask_scheduler(turn)
        turn.enter(Stage.SCHEDULER, timeout_s=SCHEDULER_TIMEOUT_S)
    elif not _awaits_losses(turn):
        _recover(turn, state.fault, state.fault_nodes)


def _awaits_losses(turn: Turn) -> bool:
    """Whether the base's last runners may be about to be lost too, after so many that too few nodes are left."""
    state = turn.state
    members = state.members
    suffice = members.usable + members.joining_count >= state.job.sizes[-1]
    if state.lost_s is None or suffice or not _has_base(turn):
        return False
    return not turn.due(state.lost_s + LOSSES_S)


def _has_base(turn: Turn) -> bool:
    """Whether a node of the base is usable."""
    return any(is_usable(turn.member(node)) for node in turn.state.job.nodes)


def scheduler(turn: Turn) -> None:
    """Waits until the scheduler can start processes again, and its nodes have registered."""
    state = turn.state
    if _ends_as_asked(turn):
        return
    if turn.due(state.deadline_s):
        why = f"the scheduler did not answer for {SCHEDULER_TIMEOUT_S:g} s: {state.blocked or 'no answer'}"
        ending.finish(turn, JobOutcome.INTERNAL, f"{why}; submit the job again")
    elif turn.due(state.again_s):
        turn.state = replace(turn.state, again_s=None)
        if state.blocked:
            _ask_scheduler(turn)
        elif state.fault is not None and state.requests.sigterm is not Sigterm.ASKED:
            _recover(turn, state.fault, state.fault_nodes)


def on_scheduler_answered(turn: Turn, given: given_.UnusableAnswered) -> None:
    if turn.state.stage is not Stage.SCHEDULER:
        return
    if given.error is not None:
        turn.state = replace(turn.state, blocked=given.error, again_s=turn.now_s + SCHEDULER_AGAIN_S)
    else:
        turn.state = replace(turn.state, blocked="", deadline_s=None, again_s=turn.now_s + SCHEDULER_SETTLE_S)


def _recover(turn: Turn, fault: Fault, nodes: tuple[str, ...]) -> None:
    """After a fault: takes the rung of the recovery ladder."""
    asked, lost = turn.state.requests, "all runners were lost at once: they are started again"
    start_again = not requests.may_be_asked(asked) and turn.take_all_back(lost)
    state, reason = turn.state, recovery.worded(fault)
    job, members = state.job, state.members
    if fault.kind == FaultKind.PREEMPTED and members.usable + members.joining_count >= job.sizes[-1]:
        turn.state = replace(turn.state, rung=Rung.SPARE)
        probe(turn)
        return
    decision = recovery.after_fault(turn, state.history.gains, fault, nodes)
    unknown = Phase.JOINING if job.is_take_over else None  # nodes that were ready under another supervisor
    may_load = any(member.is_warm or member.phase is unknown for member in members.table.values())
    if fault.kind == FaultKind.ENVIRONMENT and decision.action != "restart" and not may_load:
        reason = f"on none of the job's nodes its Python loads what it needs: {reason}"  # nor on others, then
        ending.finish(turn, JobOutcome.USER_ERROR, reason)
    elif decision.action == "stop":
        text = f"{decision.reason}\n{fault.traceback.rstrip()}" if fault.traceback else decision.reason
        ending.finish(turn, decision.outcome, text)
    elif decision.action == "requeue":
        turn.state = replace(turn.state, ending=(decision.outcome, decision.reason))
        turn.do(AskWhyTerminated())
        turn.enter(Stage.CONFIRMING)
    else:
        if decision.swapped is not None:
            turn.put_out(decision.swapped, f"{fault.diagnosis.fault_class}: {reason}")
        turn.state = replace(turn.state, rung=decision.rung)
        _back_off(turn, decision.delay_s, decision.reason, start_again=start_again)


def _back_off(turn: Turn, delay_s: float, reason: str, *, start_again: bool) -> None:
    """Waits before an attempt that follows attempts without progress."""
    if start_again:
        turn.state = replace(
            turn.state, is_patient=True
        )  # nodes with the newest step may be a moment later than others
        _ask_unusable(turn, Purpose.AGAIN)
    elif delay_s > 0:
        turn.record("backoff", seconds=delay_s, reason=reason)
        turn.enter(Stage.BACKING_OFF, timeout_s=delay_s)
    else:
        probe(turn)


def backing_off(turn: Turn) -> None:
    if not _ends_as_asked(turn) and turn.due(turn.state.deadline_s):
        probe(turn)
