"""Ends an attempt: releases its agents, kills its workers, and waits until each node confirms that nothing is left.

After the job's last attempt nobody needs the agents' memory any more, so they first write the newest step from there to
the lower tiers: once all workers have ended, after a cancel, and after a fault that ends the job.
"""

from __future__ import annotations

from launcher.core import agent_world, recovery
from launcher.core.commands import KillAgents, Order, Send
from launcher.core.liveness import RETURN_S
from launcher.core.outcomes import AttemptOutcome
from launcher.core.replay import judged
from launcher.core.state import AttemptPhase
from launcher.core.stop_reasons import StopReason
from launcher.core.turn import Turn

# outcomes after which no other attempt begins
_LAST = (AttemptOutcome.DONE, AttemptOutcome.HALTED, AttemptOutcome.CANCELLED)
KILL_CONFIRM_S = 8.0  # a runner confirms after 2 s or asks for more; on an overloaded node it may be late
# After this process stood still: a runner whose connection broke is not reported as lost for a third of this time.
RECONNECT_S = 3 * RETURN_S
AGENT_FLUSH_S = 1800.0  # after the last step; the agents' last writes are the job's result
# After a cancel; most are a SIGTERM from Slurm, 30 s before its SIGKILL (KillWait). The rest is for the question why
# it has come, and for the end of all processes.
AGENT_CANCEL_S = 20.0
AGENT_STOP_S = 3.0  # in a stop before a restart time is short, and memory survives
_NO_FILE = (
    "no file was seen that matches the job file's `progress`, so the attempt counts as one without progress; a "
    "relative pattern counts from the directory in which the script runs"
)


def release(turn: Turn) -> None:
    """Waits until the agents have finished their writes, and kills those that do not end."""
    attempt = turn.attempt
    if agent_world.await_end(turn):
        kill(turn)
    elif turn.due(_release_until_s(turn)):
        what = f"checkpoint agents still at work {turn.now_s - attempt.phase_s:.0f} s after training ended were killed"
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
    attempt, is_late = turn.attempt, turn.due(_confirm_deadline_s(turn))
    if len(attempt.killed) + len(attempt.lost) < len(attempt.nodes) and not is_late:
        return
    left = [node for node in attempt.nodes if node not in attempt.killed and node not in attempt.lost]
    if left and not is_late:
        return
    for node in left:
        turn.put_out(node, f"did not confirm the end of its workers within {KILL_CONFIRM_S:g} s")
    _report_unsaved_stop(turn)
    is_judged = attempt.outcome is AttemptOutcome.FAULT or turn.state.requests.stop == StopReason.TIME_LIMIT
    if is_judged and turn.state.history.gains.file_s == 0.0:
        turn.record("problem", attempt=attempt.number, what=_NO_FILE)
    turn.enter_phase(AttemptPhase.ENDED)


def _confirm_deadline_s(turn: Turn) -> float | None:
    """The deadline for nodes to confirm; None while most are silent, because this node may be cut off itself."""
    state = turn.state
    if state.is_isolated:
        return None
    deadline_s = max(turn.attempt.phase_s, turn.attempt.lingering_s or 0.0) + KILL_CONFIRM_S
    return deadline_s if state.stood_still_s is None else max(deadline_s, state.stood_still_s + RECONNECT_S)


def _report_unsaved_stop(turn: Turn) -> None:
    attempt, state = turn.attempt, turn.state
    reached = attempt.step or 0
    if state.requests.stop is not None and state.job.has_checkpoint and reached > attempt.committed_step:
        saved = f"the newest step committed is {attempt.committed_step or 'none'}"
        what = f"ranks ended in the stop without the save that all agree on: step {reached} was reached, {saved}"
        turn.record("problem", attempt=attempt.number, what=what)


def _release_until_s(turn: Turn) -> float:
    """The time until which the agents may write after training."""
    attempt, asked = turn.attempt, turn.state.requests
    until_s = attempt.phase_s + (AGENT_FLUSH_S if attempt.is_last else AGENT_STOP_S)
    return min(until_s, asked.cancelled_s + AGENT_CANCEL_S) if asked.is_cancelled else until_s


def is_last(turn: Turn, outcome: AttemptOutcome) -> bool:
    """Whether no other attempt follows this one, as far as can be foreseen."""
    attempt = turn.attempt
    if outcome is not AttemptOutcome.FAULT:
        return outcome in _LAST
    gains = judged(turn.state.history).gains
    return recovery.after_fault(turn, gains, attempt.faults[0], attempt.nodes).action == "stop"
