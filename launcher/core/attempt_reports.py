"""Reports about an attempt: loss of a node, workers, steps, commits, checkpoints. `attempt` acts on them."""

from __future__ import annotations

from launcher.core import boosters
from launcher.core.attempt import AT_WORK, BEFORE_END
from launcher.core.commands import Order, Send
from launcher.core.faults import Fault, FaultKind
from launcher.core.frozen import replace
from launcher.core.inputs import (
    Committed,
    FaultReported,
    FirstStep,
    Lingering,
    NodeBroken,
    NodeJoined,
    NodeLost,
    OwnCheckpointsSeen,
    Progress,
    Reported,
    RestoreRefused,
    StacksTaken,
    StopHandled,
    WorkersEnded,
    WorkersKilled,
    WorkersStarted,
)
from launcher.core.state import AgentPhase, AttemptPhase
from launcher.core.turn import Turn
from launcher.diagnosis import find_cause

# Nodes


def on_node_joined(turn: Turn, given: NodeJoined) -> None:
    """A node of the attempt has connected (again). Its workers may have been killed meanwhile."""
    attempt = turn.attempt
    if given.node in attempt.lost:
        return
    turn.attempt = replace(turn.attempt, returned=attempt.returned.insert(given.node))
    if given.attempt != attempt.number and attempt.phase in (AttemptPhase.RETURNING, *AT_WORK):
        reason = f"{given.node}: its workers were ended: no supervisor was heard in time"
        turn.add_fault(Fault(kind=FaultKind.PROCESS_EXIT, node=given.node, reason=reason))
    elif attempt.phase is AttemptPhase.KILLING:  # the order or its answer was lost
        turn.do(Send(nodes=(given.node,), order=Order.KILL, attempt=attempt.number))


def on_node_lost(turn: Turn, given: NodeLost) -> None:
    kind = FaultKind.PREEMPTED if boosters.is_leaving(turn, given.node) else FaultKind.NODE_LOST
    _lose(turn, Fault(kind=kind, node=given.node, reason=given.reason, detect_s=given.detect_s))


def on_node_broken(turn: Turn, given: NodeBroken) -> None:
    kind = FaultKind.ENVIRONMENT if given.is_environment else FaultKind.RUNNER_LOST
    _lose(turn, Fault(kind=kind, node=given.node, reason=given.reason))


def _lose(turn: Turn, fault: Fault) -> None:
    attempt = turn.attempt
    if fault.node in turn.state.holders:
        if attempt.phase in BEFORE_END and not attempt.restored:  # its agents cannot come up without the node
            turn.add_fault(fault)
            turn.record_faults()
        return
    if fault.node is None or fault.node in attempt.lost or fault.node not in attempt.nodes:
        return
    turn.attempt = replace(turn.attempt, lost=attempt.lost.insert(fault.node))
    turn.add_fault(fault)
    turn.record_faults()  # before the node's event node_out


# Reports of runners


def on_isolation_ended(turn: Turn) -> None:
    """The nodes' deadline to confirm the end of their workers starts again, and the time for the predecessor's node."""
    attempt = turn.state.attempt
    if attempt is not None and attempt.phase is AttemptPhase.KILLING:
        turn.enter_phase(AttemptPhase.KILLING)
    elif attempt is not None and attempt.others_s is not None:
        turn.attempt = replace(turn.attempt, others_s=None)


def on_workers_started(turn: Turn, given: WorkersStarted) -> None:
    started = turn.attempt.started
    if given.node not in started:
        turn.attempt = replace(turn.attempt, started=started.insert(given.node))


def on_workers_ended(turn: Turn, given: WorkersEnded) -> None:
    turn.see_step(given.step)
    attempt = turn.attempt
    if given.ok:
        if given.node not in attempt.ended:
            turn.attempt = replace(
                turn.attempt, ended=attempt.ended.insert(given.node), is_stopped=attempt.is_stopped or given.is_stopped
            )
        return
    fault_s = turn.now_s if attempt.fault_s is None else attempt.fault_s
    evidence = attempt.evidence.insert(given.node, given.evidence)
    failures = (*attempt.failures, *given.failures)
    is_clear = attempt.is_clear or _is_clear(given)
    turn.attempt = replace(turn.attempt, failures=failures, evidence=evidence, is_clear=is_clear, fault_s=fault_s)
    if not given.failures:
        turn.add_fault(Fault(kind=FaultKind.PROCESS_EXIT, node=given.node, reason=f"{given.node}: {given.reason}"))


def _is_clear(given: WorkersEnded) -> bool:
    """Judged once for each report, because thousands may come within the wait for the cause."""
    found = find_cause(given.failures, {given.node: given.evidence}) if given.failures else None
    return found is not None and not found.is_secondary


def on_workers_killed(turn: Turn, given: WorkersKilled) -> None:
    if given.left:
        left = list(given.left)
        turn.put_out(given.node, f"processes {left} do not end after SIGKILL; reboot the node")
    elif given.held:
        turn.put_out(
            given.node, f"{given.held} not freed after its workers ended; reset the GPU (nvidia-smi -r) or reboot"
        )
    turn.see_step(given.step)
    killed = turn.attempt.killed
    if given.node in turn.attempt.nodes and given.node not in killed:
        turn.attempt = replace(turn.attempt, killed=killed.insert(given.node))


def on_lingering(turn: Turn, given: Lingering) -> None:
    """Waits, because the next attempt's workers would lack the memory. At the job's end nobody does."""
    attempt = turn.attempt
    if attempt.phase is not AttemptPhase.KILLING or given.node not in attempt.nodes:
        return
    if attempt.is_last:
        turn.attempt = replace(turn.attempt, killed=attempt.killed.insert(given.node))
        return
    until_s = max(attempt.lingering_s or 0.0, turn.now_s + given.wait_s)
    turn.attempt = replace(turn.attempt, lingering_s=until_s)
    what = f"the attempt has not ended on {given.node} yet: the next one waits up to {given.wait_s:g} s for it"
    turn.record("problem", attempt=attempt.number, node=given.node, what=what, detail=given.held)


def on_progress(turn: Turn, given: Progress) -> None:
    turn.see_step(given.step)
    hang = turn.state.hang.enter(given.section, turn.now_s).note(
        given.slowest, turn.now_s, is_active=given.is_active, is_over=given.is_over, rank_ended=given.rank_ended
    )
    turn.state = replace(turn.state, hang=hang)


def on_first_step(turn: Turn, given: FirstStep) -> None:
    attempt = turn.attempt
    turn.see_step(given.step)
    if not attempt.first_step_seen:
        turn.attempt = replace(turn.attempt, first_step_seen=True)
        seconds = round(given.time_s - attempt.begun_s, 3)
        turn.record("first_step", attempt=attempt.number, step=given.step, seconds=seconds)


def on_committed(turn: Turn, given: Committed) -> None:
    attempt = turn.attempt
    if given.step <= attempt.committed.get(given.tier, -1):
        return  # already reported
    committed_step = max(attempt.committed_step, given.step)
    turn.attempt = replace(
        turn.attempt, committed=attempt.committed.insert(given.tier, given.step), committed_step=committed_step
    )
    turn.see_step(given.step)
    hang = turn.state.hang
    if hang.step is not None and given.step > hang.step:  # all ranks have finished it
        hang = hang.note(given.step, turn.now_s, is_active=True, is_over=hang.is_over, rank_ended=hang.rank_ended)
        turn.state = replace(turn.state, hang=hang)
    turn.record("commit", attempt=attempt.number, step=given.step, tier=given.tier, **given.fields)


def on_own_checkpoints(turn: Turn, given: OwnCheckpointsSeen) -> None:
    known_s = turn.state.history.gains.file_s
    if known_s is None or given.modified_s > known_s:  # else an earlier supervisor has recorded it
        turn.record("own_checkpoint", file=given.file, modified=given.modified_s)


def on_reported(turn: Turn, given: Reported) -> None:
    if given.event == "problem" and turn.agents.phase is AgentPhase.MAKING_WAY:
        return  # agents that are ended one after another report each other as lost
    turn.record(given.event, **{"attempt": given.attempt, "node": given.node, **given.fields})


def on_fault_reported(turn: Turn, given: FaultReported) -> None:
    if turn.attempt.phase in BEFORE_END:
        fault = Fault(kind=given.kind, node=given.node, rank=given.rank, reason=given.reason, action=given.action)
        turn.add_fault(fault)


def on_restore_refused(turn: Turn, given: RestoreRefused) -> None:
    turn.add_fault(Fault(kind=FaultKind.UNRESTORABLE, node=None, reason=given.reason))


def on_stop_handled(turn: Turn, given: StopHandled) -> None:
    if not given.has_handler:
        turn.attempt = replace(turn.attempt, without_handler=turn.attempt.without_handler.insert(given.node))


def on_stacks_taken(turn: Turn, given: StacksTaken) -> None:
    attempt = turn.attempt
    stacks = attempt.stacks.insert(given.node, given.stacks)
    turn.attempt = replace(attempt, stacks=stacks, ras=given.ras or attempt.ras)
