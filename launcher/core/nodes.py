"""Handles reports about nodes and their runners."""

from __future__ import annotations

from launcher.core import agent_world, attempt, attempt_reports, boosters, launch
from launcher.core import inputs as given_
from launcher.core.commands import (
    AskUnusable,
    Dismiss,
    LetGo,
    Order,
    Purpose,
    Send,
)
from launcher.core.faults import FaultKind
from launcher.core.frozen import replace
from launcher.core.members import Phase, is_usable
from launcher.core.state import AttemptPhase, Stage
from launcher.core.turn import Turn

MAX_RETURNS = 3  # of one node; each further loss of a node costs an attempt
READ_S = 1.0  # for messages that came while this process stood still


def on_node_joined(turn: Turn, given: given_.NodeJoined) -> None:
    if not boosters.admit(turn, given):
        return
    node, member = given.node, turn.member(given.node)
    if member.phase in (Phase.OUT, Phase.RETURNING):
        if member.is_lost:
            _return(turn, given)
        return
    if member.phase is Phase.JOINING:  # others are on their way: thousands cannot connect within RETURN_S
        _await_others(turn)
    if given.problem is not None:
        turn.record("fault", kind=FaultKind.PREFLIGHT, node=node, reason=given.problem)
        turn.put_out(node, given.problem)
    else:
        turn.add_ready(node, is_warm=given.is_warm)
    trains = turn.state.stage is Stage.ATTEMPT and node in turn.attempt.nodes
    if trains:
        attempt_reports.on_node_joined(turn, given)
    elif given.attempt is not None:  # it belongs to an earlier supervisor, and no attempt is continued
        turn.do(Send(nodes=(node,), order=Order.KILL, attempt=given.attempt))


def _return(turn: Turn, given: given_.NodeJoined) -> None:
    """A lost node has come back. It becomes a spare once no process of its last attempt is left on it."""
    returns = turn.member(given.node).returns + 1
    member = replace(turn.member(given.node), phase=Phase.RETURNING, returns=returns, ending=given.attempt)
    turn.put_member(given.node, replace(member, is_judged=False, is_warm=given.is_warm))
    if returns > MAX_RETURNS:
        _refuse(turn, given.node)
    else:
        allocations = {given.node: turn.member(given.node).allocation}
        turn.do(AskUnusable(nodes=(given.node,), purpose=Purpose.RETURN, allocations=allocations))


def on_return_answered(turn: Turn, given: given_.UnusableAnswered) -> None:
    for node in given.asked:
        if node not in turn.state.members:  # its booster has ended
            continue
        member = turn.member(node)
        if member.phase is not Phase.RETURNING:
            continue
        if given.error is not None:
            _refuse(turn, node, forget=False)  # nothing is known about the node
        elif node in given.unusable:
            _refuse(turn, node)
        elif member.ending is None:
            turn.take_back(node)
        else:
            turn.put_member(node, replace(turn.member(node), is_judged=True))
            turn.do(Send(nodes=(node,), order=Order.KILL, attempt=member.ending))


def has_left(turn: Turn, given: given_.WorkersKilled) -> bool:
    """Whether this is the answer of a returning node."""
    if given.node not in turn.state.members:
        return False
    member = turn.member(given.node)
    if member.phase is not Phase.RETURNING or member.ending != given.attempt:
        return False
    if given.left or given.held:
        _refuse(turn, given.node)
    elif member.is_judged:
        turn.take_back(given.node)
    else:
        turn.put_member(given.node, replace(turn.member(given.node), ending=None))
    return True


def _refuse(turn: Turn, node: str, *, forget: bool = True) -> None:
    """A node that has come back stays out."""
    allocation = turn.member(node).allocation if boosters.is_of_one(turn, node) else ""
    turn.put_member(node, replace(turn.member(node), phase=Phase.OUT, is_lost=False, ending=None))
    turn.do(Dismiss(node=node, forget=forget, allocation=allocation))


def on_node_warm(turn: Turn, given: given_.NodeWarm) -> None:
    member = turn.member(given.node)
    if is_usable(member) and not member.is_warm:
        turn.put_member(given.node, replace(turn.member(given.node), is_warm=True))
        turn.record("node_ready", node=given.node, warm=True)


def on_node_lost(turn: Turn, given: given_.NodeLost) -> None:
    turn.state = replace(turn.state, lost_s=turn.now_s)
    if turn.state.stage is Stage.ATTEMPT:
        attempt_reports.on_node_lost(turn, given)
    elif launch.on_node_lost(turn, given):
        return
    turn.lose(given.node, given.reason)


def on_node_broken(turn: Turn, given: given_.NodeBroken) -> None:
    phase = turn.member(given.node).phase
    if phase is Phase.OUT:
        return
    if phase is not Phase.RETURNING and turn.state.stage is Stage.ATTEMPT:
        attempt_reports.on_node_broken(turn, given)
    turn.put_out(given.node, given.reason, is_environment=given.is_environment)


def on_isolation(turn: Turn, given: given_.IsolationChanged) -> None:
    turn.state = replace(turn.state, is_isolated=given.is_isolated)
    if given.is_isolated:
        turn.do(LetGo())
        turn.agents = replace(turn.agents, has_launcher=False)
        return
    _await_others(turn)
    attempt_reports.on_isolation_ended(turn)
    if turn.state.stage is Stage.ATTEMPT:
        agent_world.on_let_go(turn)


def _await_others(turn: Turn) -> None:
    """After a take-over: the time for runners to come back starts again."""
    if turn.state.roll_call_s is not None:
        turn.state = replace(turn.state, roll_call_s=turn.now_s + attempt.RETURN_S)
    if turn.state.attempt is not None and turn.attempt.phase is AttemptPhase.RETURNING:
        turn.enter_phase(AttemptPhase.RETURNING)


def on_stood_still(turn: Turn, given: given_.StoodStill) -> None:
    """Extends all deadlines by the time in which the process stood still, and by that to read the messages of it.

    A late timer and the watch over the connections may both report it, and the timer a part of it only: the longest
    counts.
    """
    state, seconds = turn.state, given.seconds + READ_S
    if state.stood_still_s is not None and turn.now_s - state.stood_still_s < given.seconds:
        seconds = given.seconds - state.stood_still_for_s
        if seconds <= 0:
            return

    def later(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + seconds

    turn.state = replace(
        turn.state,
        hang=state.hang.pause(seconds),
        stage_s=state.stage_s + seconds,
        deadline_s=later(state.deadline_s),
        full_s=later(state.full_s),
        roll_call_s=later(state.roll_call_s),
        stood_still_s=turn.now_s,
        stood_still_for_s=given.seconds,
    )
    turn.launch = replace(turn.launch, late_s=later(state.launch.late_s))
    turn.agents = replace(turn.agents, until_s=later(state.agents.until_s))
    if state.attempt is not None:
        turn.attempt = replace(
            turn.attempt, phase_s=state.attempt.phase_s + seconds, others_s=later(state.attempt.others_s)
        )


def call_the_roll(turn: Turn) -> None:
    """Gives up runners that have not come back after a take-over, unless this node may be the one that is cut off."""
    state = turn.state
    if state.is_isolated or not turn.due(state.roll_call_s):
        return
    turn.state = replace(turn.state, roll_call_s=None)
    late = f"its runner did not come back, and no other did for {attempt.RETURN_S:g} s"
    joining = [node for node in boosters.nodes(state) if turn.member(node).phase is Phase.JOINING]
    attempt.miss(turn, dict.fromkeys((*launch.joining(turn), *joining), late))
