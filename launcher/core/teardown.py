"""Ends an attempt: releases its agents, kills its workers, and waits until each node confirms that nothing is left."""

from __future__ import annotations

from launcher.core import agent_world
from launcher.core.commands import KillAgents, LookAtOwnCheckpoints, Order, Send
from launcher.core.replay import TIME_LIMIT
from launcher.core.state import Attempt, AttemptPhase
from launcher.core.turn import Turn

ENDS_TRAINING = ("done", "halted")  # outcomes after which nobody needs the agents' memory any more
KILL_CONFIRM_S = 5.0
# After this process stood still: a runner whose connection broke is not reported as lost for half of this time.
RECONNECT_S = 12.0
AGENT_FLUSH_S = 1800.0  # after the last step; the agents' last writes are the job's result
AGENT_STOP_S = 3.0  # in a stop before a restart time is short, and memory survives


def release(turn: Turn) -> None:
    """Waits until the agents have finished their writes, and kills those that do not end."""
    attempt = turn.attempt
    timeout_s = flush_s(attempt)
    if agent_world.await_end(turn) or turn.state.requests.is_cancelled:
        kill(turn)
    elif turn.has_passed(timeout_s):
        what = f"checkpoint agents still at work {timeout_s:g} s after training ended were killed"
        turn.record("problem", attempt=attempt.number, what=what)
        kill(turn)


def kill(turn: Turn) -> None:
    """Ends all processes of the attempt on all its nodes."""
    attempt = turn.attempt
    if turn.state.job.has_checkpoint:
        turn.do(KillAgents())
    turn.do(Send(nodes=agent_world.nodes(turn), order=Order.KILL, attempt=attempt.number))
    turn.enter_phase(AttemptPhase.KILLING)


def confirm_killed(turn: Turn) -> None:
    """Puts out nodes that do not confirm."""
    attempt, deadline_s = turn.attempt, confirm_deadline_s(turn)
    is_late = deadline_s is not None and turn.now_s >= deadline_s
    if len(attempt.killed) + len(attempt.lost) < len(attempt.nodes) and not is_late:
        return
    left = [node for node in attempt.nodes if node not in attempt.killed and node not in attempt.lost]
    if left and not is_late:
        return
    for node in left:
        turn.put_out(node, f"did not confirm the end of its workers within {KILL_CONFIRM_S:g} s")
    _report_unsaved_stop(turn)
    is_judged = attempt.outcome == "fault" or turn.state.requests.stop == TIME_LIMIT  # by what it has gained
    if is_judged and turn.state.job.names_own_checkpoints:
        turn.do(LookAtOwnCheckpoints())
        turn.enter_phase(AttemptPhase.LOOKING)
    else:
        turn.enter_phase(AttemptPhase.ENDED)


def confirm_deadline_s(turn: Turn) -> float | None:
    """The deadline for nodes to confirm; None while most are silent, because this node may be cut off itself."""
    state = turn.state
    if state.is_isolated:
        return None
    deadline_s = turn.attempt.phase_s + KILL_CONFIRM_S
    return deadline_s if state.stood_still_s is None else max(deadline_s, state.stood_still_s + RECONNECT_S)


def _report_unsaved_stop(turn: Turn) -> None:
    attempt, state = turn.attempt, turn.state
    reached = attempt.step or 0
    if state.requests.stop is not None and state.job.has_checkpoint and reached > attempt.committed_step:
        saved = f"the newest step committed is {attempt.committed_step or 'none'}"
        what = f"ranks ended in the stop without the save that all agree on: step {reached} was reached, {saved}"
        turn.record("problem", attempt=attempt.number, what=what)


def flush_s(attempt: Attempt) -> float:
    """Seconds that the agents may take after training."""
    return AGENT_FLUSH_S if attempt.outcome in ENDS_TRAINING else AGENT_STOP_S
