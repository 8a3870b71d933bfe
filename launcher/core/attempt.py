"""One attempt: agents and workers start, train, end in a named outcome, and leave no process behind."""

from __future__ import annotations

from rpds import HashTrieMap, HashTrieSet

from launcher.core import agent_world, requests, teardown
from launcher.core.commands import (
    Order,
    Send,
    StartWorkers,
)
from launcher.core.faults import Fault, FaultKind, root_cause
from launcher.core.frozen import replace
from launcher.core.hang import Stall
from launcher.core.inputs import (
    EventsWritten,
    UnusableAnswered,
)
from launcher.core.liveness import RETURN_S
from launcher.core.members import Phase
from launcher.core.outcomes import AttemptOutcome
from launcher.core.replay import Running
from launcher.core.rungs import Rung
from launcher.core.state import AgentWorld, Attempt, AttemptPhase, Sigterm, Stage
from launcher.core.stop_reasons import StopReason
from launcher.core.turn import Turn
from launcher.diagnosis.hang_verdict import judge

FOLDER_TIMEOUT_S = 600.0  # a shared file system may be full or fail over for a while
START_TIMEOUT_S = 300.0  # until workers run on all nodes; a cold import of torch from a shared file system is slow
PREDECESSOR_S = 1.0
PREDECESSOR_LOST = "lost with the supervisor it ran"
STACKS_TIMEOUT_S = 12.0  # a runner gives its workers 2 s, and py-spy 5 s
# Wait this long after a worker's failure for its cause: a lost node, or an earlier failure
CAUSE_WINDOW_S = 0.15
SECONDARY_CAUSE_WINDOW_S = 0.5

AT_WORK = (AttemptPhase.STARTING, AttemptPhase.TRAINING, AttemptPhase.JUDGING)
BEFORE_END = (AttemptPhase.RECORDING, AttemptPhase.RETURNING, *AT_WORK, AttemptPhase.FINDING_CAUSE)


def begin(turn: Turn, nodes: tuple[str, ...], rung: Rung, spares: list[str]) -> None:
    """Begins an attempt. Nothing is started before its start is recorded on disk."""
    number = turn.state.history.next_attempt
    turn.state = replace(
        turn.state, attempt=Attempt(number=number, nodes=nodes, begun_s=turn.now_s), agents=AgentWorld()
    )
    turn.enter_phase(AttemptPhase.RECORDING)
    for node in nodes:
        turn.put_member(node, replace(turn.member(node), phase=Phase.TRAINING))
    holders = list(turn.state.holders) or None
    turn.record("attempt_start", attempt=number, nodes=list(nodes), spares=spares, rung=rung, holders=holders)
    turn.settle()


def resume(turn: Turn, running: Running) -> None:
    """Continues a running attempt of another supervisor."""
    attempt = Attempt(
        number=running.number,
        nodes=running.nodes,
        begun_s=running.begun_s,
        phase=AttemptPhase.RETURNING,
        phase_s=turn.now_s,
        started=HashTrieSet(running.nodes),
        restored=running.restored,
        first_step_seen=running.first_step_seen,
        committed=running.committed,
        committed_step=max(running.committed.values(), default=0),
        step=max(running.committed.values(), default=None),
    )
    turn.state = replace(turn.state, attempt=attempt)
    if turn.state.job.has_checkpoint:
        agent_world.adopt(turn, running)


def on_events_written(turn: Turn, given: EventsWritten) -> None:
    attempt = turn.state.attempt
    is_closing = turn.state.stage is not Stage.ATTEMPT  # meanwhile the job has given up waiting for the folder
    if attempt is None or attempt.phase is not AttemptPhase.RECORDING or is_closing:
        return
    if _is_over(turn):
        _end(turn)
        return
    has_agents = turn.state.job.has_checkpoint
    turn.enter_phase(AttemptPhase.STARTING)
    turn.do(StartWorkers(nodes=attempt.nodes, attempt=attempt.number, has_agents=has_agents))
    if has_agents:
        agent_world.start(turn)


# Answers


def on_failed_agents_explained(turn: Turn, given: UnusableAnswered) -> None:
    """Finds whether nodes or the scheduler kept the agents from starting before the restore."""
    attempt = turn.attempt
    if attempt.phase is not AttemptPhase.EXPLAINING:
        return
    if given.error is not None:
        reason = f"the scheduler does not answer, so no checkpoint agent starts; the job waits for it: {given.error}"
        turn.attempt = replace(
            turn.attempt, faults=(Fault(kind=FaultKind.SCHEDULER_LOST, node=None, reason=reason), *attempt.faults[1:])
        )
    elif given.unusable:
        turn.attempt = replace(turn.attempt, faults=attempt.faults[1:])
        agent_world.put_unusable_out(turn, dict(given.unusable))
        if not turn.attempt.faults:  # meanwhile the job has released these nodes
            turn.attempt = replace(turn.attempt, faults=attempt.faults[:1])
    _decide(turn)


# Phases


def advance(turn: Turn) -> None:
    """Advances the attempt. Called until nothing changes."""
    attempt = turn.attempt
    agent_world.advance(turn, is_training=attempt.phase in AT_WORK)
    _PHASES[turn.attempt.phase](turn)
    attempt = turn.attempt
    is_explained = attempt.phase not in (*BEFORE_END, AttemptPhase.EXPLAINING)
    if attempt.faults and (is_explained or attempt.faults[0].kind != FaultKind.AGENT_LOST):
        turn.record_faults()


def cannot_be_recorded(turn: Turn) -> bool:
    """Whether the event of the attempt's start could not be written for too long."""
    return turn.attempt.phase is AttemptPhase.RECORDING and turn.has_passed(FOLDER_TIMEOUT_S)


def _record(turn: Turn) -> None:
    """Waits for on_events_written(). If the job is to end, it does so at once, because nothing has been started."""
    if requests.is_stopping(turn.state.requests):
        _end(turn)


def _return(turn: Turn) -> None:
    """After a take-over: waits for the runners to connect. Once all others are there, the runner on the former
    supervisor's node gets little more time. While most nodes are silent, nothing is decided, because this node may be
    cut off."""
    attempt, state = turn.attempt, turn.state
    away = len(attempt.nodes) - len(attempt.returned) - len(attempt.lost) - state.members.counts[Phase.OUT]
    if away > 1 and not _is_return_over(turn):  # each of thousands of runners that connect comes here
        return
    silent = state.job.predecessor if state.job.is_predecessor_silent else None
    missing = [
        node
        for node in attempt.nodes
        if node not in attempt.returned
        and node not in attempt.lost
        and node != silent
        and state.members[node].phase is not Phase.OUT
    ]
    if missing:
        if attempt.others_s is None and set(missing) <= {state.job.predecessor}:
            turn.attempt = replace(turn.attempt, others_s=turn.now_s)
        if not _is_return_over(turn):
            return
    gone = [node for node in attempt.nodes if node not in attempt.returned and node not in attempt.lost]
    absent = {node: _why_absent(turn, node) for node in gone}
    for node, reason in absent.items():
        turn.attempt = replace(turn.attempt, lost=turn.attempt.lost.insert(node))
        turn.add_fault(Fault(kind=FaultKind.NODE_LOST, node=node, reason=reason, detect_s=0.0))
    turn.record_faults()
    miss(turn, absent)
    turn.enter_phase(AttemptPhase.TRAINING)
    turn.state = replace(turn.state, hang=turn.state.hang.begin(turn.now_s))


def miss(turn: Turn, absent: dict[str, str]) -> None:
    """Continues without nodes whose runners have not come back after a take-over.

    They are lost. The exception: if no runner at all is there, or Slurm is ending the job, only the runners are known
    to be gone. Then this supervisor leaves those nodes out without recording it, and the job's next start has them
    again.
    """
    are_lost = turn.state.members.usable > 0 and not requests.may_be_asked(turn.state.requests)
    for node, reason in absent.items():
        if are_lost:
            turn.lose(node, reason)
        elif turn.member(node).phase is not Phase.OUT:
            turn.leave_out(node, reason)


def _start(turn: Turn) -> None:
    attempt = turn.attempt
    _pass_on_stop(turn)
    if _is_over(turn):
        _end(turn)
    elif attempt.all_started:
        seconds = round(turn.now_s - attempt.begun_s, 3)
        turn.record("workers_started", attempt=attempt.number, seconds=seconds)
        turn.enter_phase(AttemptPhase.TRAINING)
        turn.state = replace(turn.state, hang=turn.state.hang.begin(turn.now_s))
    elif turn.has_passed(START_TIMEOUT_S):
        _blame_late_start(turn)
        _end(turn)


def _train(turn: Turn) -> None:
    _pass_on_stop(turn)
    if _is_over(turn):
        _end(turn)
    elif _stop_deadline_s(turn) is None and not turn.state.is_isolated:  # else steps are made that are not heard of
        stall = _stall(turn)
        if stall is not None:
            attempt = turn.attempt
            turn.enter_phase(AttemptPhase.JUDGING)
            turn.attempt = replace(
                turn.attempt, stall_reason=stall.reason, stacks=HashTrieMap(), ras=(), fault_s=turn.now_s
            )
            turn.do(Send(nodes=attempt.nodes, order=Order.DUMP, attempt=attempt.number))


def _judge(turn: Turn) -> None:
    """Finds the rank for which the others wait, once every node has reported its workers' stacks."""
    attempt = turn.attempt
    _pass_on_stop(turn)
    if _is_over(turn):  # for example because a node was lost, which is then the cause
        turn.attempt = replace(turn.attempt, fault_s=turn.now_s)
        _end(turn)
        return
    if turn.state.is_isolated:
        turn.attempt = replace(turn.attempt, fault_s=None)
        turn.enter_phase(AttemptPhase.TRAINING)
        return
    if len(attempt.stacks) < len(attempt.nodes) and not turn.has_passed(STACKS_TIMEOUT_S):
        return
    stall = _stall(turn)
    turn.enter_phase(AttemptPhase.TRAINING)
    if stall is None:
        turn.attempt = replace(turn.attempt, fault_s=None)
        turn.record("problem", attempt=attempt.number, what=f"{attempt.stall_reason}; then it went on")
        return
    stacks = [stack for _, of_node in sorted(attempt.stacks.items()) for stack in of_node]
    verdict = judge(stacks, [node for node in attempt.nodes if node not in attempt.stacks], attempt.ras)
    guilty = verdict.guilty[0] if verdict.guilty else None
    where = f"{turn.state.job.log_dir.format(attempt=attempt.number)}/rank-*.stack"
    fault = Fault(
        kind=FaultKind.HANG,
        node=guilty.node if guilty else None,
        rank=guilty.rank if guilty else None,
        reason=f"{stall.reason}; {verdict.text}; stacks in {where}",
        detect_s=round(stall.quiet_s, 3),
    )
    if guilty is not None:
        fault = replace(fault, cause=replace(fault.diagnosis, proof=verdict.text))
    turn.add_fault(fault)


def _find_cause(turn: Turn) -> None:
    """Waits a moment for the cause of the first failure: a lost node, or an earlier failure."""
    attempt = turn.attempt
    if not attempt.faults and not turn.state.requests.is_cancelled:
        reported = {failure.node for failure in attempt.failures}
        is_complete = len(reported) + len(attempt.ended) >= len(attempt.nodes)
        if not is_complete and not turn.has_passed(_cause_window_s(attempt)):
            return
    if not attempt.faults:
        turn.add_fault(root_cause(attempt.failures, attempt.evidence))
    _explain(turn)


def _explain(turn: Turn) -> None:
    attempt = turn.attempt
    if attempt.faults and attempt.faults[0].kind == FaultKind.AGENT_LOST and not attempt.recorded:
        turn.enter_phase(AttemptPhase.EXPLAINING)
        agent_world.ask_why_failed(turn)
    else:
        _decide(turn)


def _await_explanation(turn: Turn) -> None:
    """Waits for on_failed_agents_explained(), or until another cause is known."""
    if turn.state.requests.is_cancelled or turn.attempt.recorded:
        _decide(turn)


def _decide(turn: Turn) -> None:
    """Decides the outcome, once the cause is known. All workers may have exited with 0 because of a SIGTERM that is
    not explained yet."""
    turn.record_faults()
    attempt, asked = turn.attempt, turn.state.requests
    if attempt.all_ended and asked.sigterm is Sigterm.ASKED and not asked.is_cancelled:
        return
    is_done = attempt.all_ended and not attempt.is_stopped  # also if a resize was about to stop its ranks
    is_stopping = requests.is_stopping(asked) and not (is_done and requests.outcome_of(asked) is AttemptOutcome.RESIZED)
    if is_stopping and (attempt.all_ended or asked.is_cancelled or not attempt.faults):
        outcome = requests.outcome_of(asked)
    elif is_done:
        outcome = AttemptOutcome.DONE
    else:
        outcome = AttemptOutcome.FAULT
        if attempt.all_ended:
            reason = "its workers were asked to stop by a supervisor that is gone"
            turn.add_fault(Fault(kind=FaultKind.PROCESS_EXIT, node=None, reason=reason))
            turn.record_faults()
    turn.attempt = replace(turn.attempt, outcome=outcome, is_last=teardown.is_last(turn, outcome))
    if outcome in (AttemptOutcome.RESIZED, AttemptOutcome.STOPPED, AttemptOutcome.HALTED) and _is_stop_overdue(turn):
        has_agents = turn.state.job.has_checkpoint
        late = "reached a common step boundary" if has_agents else "ended by their handlers of SIGTERM"
        what = f"not all ranks {late} in time ({asked.stop}); they were ended"
        turn.record("problem", attempt=attempt.number, what=what)
    is_last = turn.attempt.is_last
    can_write = attempt.all_ended or (is_last and agent_world.is_whole(turn))
    has_work = not (outcome is AttemptOutcome.RESIZED and _is_committed(turn))
    if turn.state.job.has_checkpoint and can_write and has_work:
        order = Order.FINISH_AGENT if is_last else Order.RELEASE_AGENT
        turn.do(Send(nodes=agent_world.nodes(turn), order=order, attempt=attempt.number))
        turn.enter_phase(AttemptPhase.RELEASING)
    else:
        teardown.kill(turn)


def _is_committed(turn: Turn) -> bool:
    """Whether the step at which all ranks stopped is committed. The next attempt takes it from memory, so agents need
    not write it to the lower tiers."""
    attempt = turn.attempt
    return turn.state.history.tells_steps and attempt.step is not None and 0 < attempt.step <= attempt.committed_step


def _ended(turn: Turn) -> None:
    """The attempt is over; decision.py continues."""


_PHASES = {
    AttemptPhase.RECORDING: _record,
    AttemptPhase.RETURNING: _return,
    AttemptPhase.STARTING: _start,
    AttemptPhase.TRAINING: _train,
    AttemptPhase.JUDGING: _judge,
    AttemptPhase.FINDING_CAUSE: _find_cause,
    AttemptPhase.EXPLAINING: _await_explanation,
    AttemptPhase.RELEASING: teardown.release,
    AttemptPhase.KILLING: teardown.confirm_killed,
    AttemptPhase.ENDED: _ended,
}


def _end(turn: Turn) -> None:
    """Determines the outcome of the attempt."""
    attempt = turn.attempt
    if attempt.failures and not attempt.faults:
        turn.enter_phase(AttemptPhase.FINDING_CAUSE)
    else:
        _explain(turn)


def _is_over(turn: Turn) -> bool:
    asked, attempt = turn.state.requests, turn.attempt
    ends_by_handlers = asked.stop is not None and not turn.state.job.has_checkpoint
    is_over = attempt.has_stopped if ends_by_handlers else attempt.is_decisive
    return asked.is_cancelled or is_over or _is_stop_overdue(turn)


def _is_stop_overdue(turn: Turn) -> bool:
    return turn.due(_stop_deadline_s(turn))


def _stop_deadline_s(turn: Turn) -> float | None:
    """The time at which a stop is overdue; None if no stop was requested."""
    if turn.state.requests.stop == StopReason.RESIZE and not turn.state.resize.is_written:
        return None
    return requests.stop_deadline_s(turn.state.requests, turn.state.job.elastic)


def _pass_on_stop(turn: Turn) -> None:
    """Sends a requested stop to all ranks, once for each reason, because the time for the lower tiers depends on it."""
    attempt, stop = turn.attempt, turn.state.requests.stop
    if stop == StopReason.RESIZE and not turn.state.resize.is_written:
        return
    if stop is not None and stop != attempt.stop_sent:
        turn.attempt = replace(turn.attempt, stop_sent=stop)
        lower_s = requests.lower_s(stop)
        turn.do(Send(nodes=attempt.nodes, order=Order.STOP, attempt=attempt.number, lower_s=lower_s))


def _blame_late_start(turn: Turn) -> None:
    attempt = turn.attempt
    late = [node for node in attempt.nodes if node not in attempt.started]
    cold = [node for node in late if not turn.member(node).is_warm]
    reason = f"workers not started within {START_TIMEOUT_S:g} s on {','.join(late)}"
    turn.add_fault(Fault(kind=FaultKind.START_TIMEOUT, node=cold[0] if cold else None, reason=reason))
    turn.record_faults()
    if cold and len(cold) < len(attempt.nodes):
        for node in cold:
            turn.put_out(node, "torch not loaded within the start timeout")


def _return_deadline_s(turn: Turn) -> float | None:
    if turn.state.is_isolated:
        return None
    deadline_s, others_s = turn.attempt.phase_s + RETURN_S, turn.attempt.others_s
    return deadline_s if others_s is None else min(deadline_s, others_s + PREDECESSOR_S)


def _is_return_over(turn: Turn) -> bool:
    """Whether runners that have not connected yet are not waited for."""
    return turn.state.requests.is_cancelled or turn.due(_return_deadline_s(turn))


def _why_absent(turn: Turn, node: str) -> str:
    return PREDECESSOR_LOST if node == turn.state.job.predecessor else "its runner did not come back"


def _cause_window_s(attempt: Attempt) -> float:
    return CAUSE_WINDOW_S if attempt.is_clear else SECONDARY_CAUSE_WINDOW_S


def _stall(turn: Turn) -> Stall | None:
    hang, hangs, history = turn.state.hang, _hangs(turn), turn.state.history
    tells_steps, longest_start_s = history.tells_steps, history.longest_start_s
    if not turn.due(hang.due_s(hangs, tells_steps=tells_steps, longest_start_s=longest_start_s)):
        return None
    return hang.check(turn.now_s, hangs, tells_steps=tells_steps, longest_start_s=longest_start_s)


def _hangs(turn: Turn) -> int:
    """The number of hangs since the last new step."""
    history, slowest = turn.state.history, turn.state.hang.step
    return 0 if slowest is not None and slowest > history.hang_step else history.hangs
