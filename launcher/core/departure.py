"""Leaves a node before it fails, while a spare can take its position.

A mark says that a node is to be left, and why: it is drained, its health check failed, or it is slow. All ranks stop at
a common step boundary, as for a resize, and the next attempt trains with the spare. The node serves its shards until
that attempt has committed a step of its own. Then it is out.

The job never becomes smaller by this. Without a spare it stays on the node, and says so once. A marked node trains in
a later attempt only if there are too few others: that is better than a requeue.
"""

from __future__ import annotations

from launcher.core import choice, resize
from launcher.core.commands import GiveBack
from launcher.core.frozen import replace
from launcher.core.inputs import NodeIncident, NodesDrained
from launcher.core.marks import DepartureCause
from launcher.core.members import Phase, is_usable
from launcher.core.requests import may_be_asked
from launcher.core.state import AttemptPhase, Stage
from launcher.core.turn import Turn


def mark(turn: Turn, node: str, cause: DepartureCause, reason: str) -> None:
    """A node is to be left.

    Args:
        reason: the reason in words, for users.
    """
    turn.state = replace(turn.state, marks=turn.state.marks.put(node, cause, reason))


def unmark(turn: Turn, node: str, cause: DepartureCause) -> None:
    """The cause is gone. A departure that has begun is carried on."""
    turn.state = replace(turn.state, marks=turn.state.marks.remove(node, cause))


def on_drained(turn: Turn, given: NodesDrained) -> None:
    reasons = {node: reason for node, reason in given.reasons.items() if node in turn.state.members}
    turn.state = replace(turn.state, marks=turn.state.marks.only(DepartureCause.DRAINED, reasons))


def on_incident(turn: Turn, given: NodeIncident) -> None:
    if given.reason is None:
        unmark(turn, given.node, DepartureCause.INCIDENT)
    else:
        mark(turn, given.node, DepartureCause.INCIDENT, given.reason)


def advance(turn: Turn) -> None:
    """Gives back nodes that were left, and requests the stop before a spare takes a marked node's place."""
    state = turn.state
    if not state.marks.table and not state.history.leaving:
        return
    attempt = state.attempt
    if attempt is None or state.stage is not Stage.ATTEMPT or attempt.phase is not AttemptPhase.TRAINING:
        return
    if attempt.is_decisive or state.requests.stop is not None or may_be_asked(state.requests):
        return
    if state.marks.settled is state.members or not resize.may_make_way(turn):
        return
    _give_back(turn)
    _tell_of_spares(turn)
    if not _begin(turn):
        turn.state = replace(turn.state, marks=replace(turn.state.marks, settled=turn.state.members))


def on_choice(turn: Turn, nodes: tuple[str, ...]) -> None:
    """The next attempt is about to begin on these nodes. Marked nodes that trained before and are not among them leave.

    The attempt before may have ended for any reason.
    """
    state = turn.state
    for node in state.positions:
        is_left = node in state.marks and node not in nodes and node not in state.history.leaving
        if is_left and node in state.members and is_usable(state.members[node]):
            _leave(turn, node)


def _give_back(turn: Turn) -> None:
    """Puts out the nodes that were left, unless they still serve their shards."""
    state, attempt = turn.state, turn.attempt
    for node in sorted(state.history.leaving):
        member = state.members.table.get(node)
        if member is not None and member.phase is Phase.READY and node not in (*attempt.nodes, *state.holders):
            cause, reason = _why(turn, node)
            turn.put_out(node, reason, cause=cause)
            if state.job.can_requeue and turn.booster(member.allocation) is None:  # a booster ends as a whole
                turn.do(GiveBack(node=node))


def _tell_of_spares(turn: Turn) -> None:
    members, attempt = turn.state.members, turn.attempt
    idle = [node for node in sorted(turn.state.marks.nodes) if node in members and node not in attempt.nodes]
    ready = [node for node in idle if members[node].phase is Phase.READY]
    _tell(turn, {node: f"spare {node} trains only if too few other nodes are left" for node in ready})


def _begin(turn: Turn) -> bool:
    """Whether a departure has begun. Otherwise the job stays on its marked nodes, and the events say so once."""
    state, attempt = turn.state, turn.attempt
    marked = [node for node in attempt.nodes if node in state.marks]
    best = choice.best(turn) if marked else None
    if best is None:
        return False
    left = [node for node in marked if node not in best.nodes]
    new = [node for node in best.nodes if node not in attempt.nodes]
    is_smaller = len(best.nodes) < len(attempt.nodes)  # a job that has lost boosters, on more nodes than its base
    if not state.job.has_checkpoint or not left or is_smaller:
        _stay(turn, marked, "it would train on fewer nodes" if left and is_smaller else "no spare is free")
        return False
    if not all(state.members[node].is_warm for node in new):  # it is warm in a moment
        return False
    for node in left:
        _leave(turn, node)
    resize.make_way(turn)
    return True


def _stay(turn: Turn, marked: list[str], why: str) -> None:
    why = why if turn.state.job.has_checkpoint else "without `checkpoint` a stop would lose steps"
    _tell(turn, {node: f"the job stays on {node}: {why}" for node in marked})


def _tell(turn: Turn, what: dict[str, str]) -> None:
    """Records once what the marks of these nodes mean."""
    untold = [node for node in what if node not in turn.state.marks.told]
    for node in untold:
        _, reason = _why(turn, node)
        turn.record("problem", attempt=turn.attempt.number, node=node, what=what[node], detail=reason)
    if untold:
        turn.state = replace(turn.state, marks=turn.state.marks.tell(untold))


def _leave(turn: Turn, node: str) -> None:
    attempt = turn.state.attempt
    number = attempt.number if attempt is not None and attempt.is_running else None
    cause, reason = _why(turn, node)
    turn.record("node_leaving", attempt=number, node=node, cause=cause, reason=reason)


def _why(turn: Turn, node: str) -> tuple[str, str]:
    """Why a node is left: from its mark, or from the events, where an earlier supervisor has marked it."""
    found = turn.state.marks.of(node)
    if found is not None:
        cause, reason = found
        return cause.value, reason
    why = turn.state.history.leaving[node]
    return why.cause, why.reason
