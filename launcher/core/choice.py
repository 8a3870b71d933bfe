"""Chooses the nodes of the next attempt: the number, the nodes that may train, and the holders."""

from __future__ import annotations

from launcher.core import boosters
from launcher.core.members import Choice, Phase, choose, is_usable
from launcher.core.rungs import Rung
from launcher.core.state import JobFacts
from launcher.core.turn import Turn


def allowed(job: JobFacts, nodes: int) -> int:
    """The largest allowed size that is not above `nodes`; the smallest one if all are."""
    return next((size for size in job.sizes if size <= nodes), job.sizes[-1])


def wanted(turn: Turn) -> int:
    """The wanted size of the job, which it may not reach."""
    job, scale = turn.state.job, turn.state.history.scale
    size = job.base_size if job.is_local else job.sizes[0]
    if scale is not None:
        size = allowed(job, scale)  # not allowed if it is of a run that was killed, with another job file
    return min(size, job.base_size) if turn.state.time_limit.is_ending else size


def candidates(turn: Turn) -> tuple[str, ...]:
    """The nodes among which the next attempt's are chosen, with the base's spares last.

    Nodes of boosters that are not warm are left out, unless there are too few others.
    """
    job, members = turn.state.job, turn.state.members
    of_boosters = boosters.nodes(turn.state)
    if not of_boosters:
        return job.nodes
    before = frozenset(turn.state.positions)
    warm = tuple(node for node in of_boosters if members[node].is_warm or node in before)
    trains, spares = job.nodes[: job.base_size], job.nodes[job.base_size :]
    found = (*trains, *warm, *spares)
    enough = sum(is_usable(members[node]) for node in found) >= job.sizes[-1]
    return found if enough else (*trains, *of_boosters, *spares)


def sizes(turn: Turn, nodes: tuple[str, ...]) -> tuple[int, ...]:
    """The allowed sizes of the next attempt. Spares of the base replace lost nodes, and do not make it larger.

    Args:
        nodes: nodes that may train.
    """
    job, members = turn.state.job, turn.state.members
    of_boosters = frozenset(boosters.nodes(turn.state))
    usable = sum(node in of_boosters and is_usable(members[node]) for node in nodes) if of_boosters else 0
    most = min(job.base_size + usable, wanted(turn))
    return tuple(size for size in job.sizes if size <= most)


def size(turn: Turn) -> int:
    """The size of an attempt that began now; 0 if there are too few nodes."""
    nodes = candidates(turn)
    usable = sum(is_usable(turn.member(node)) for node in nodes)
    return next((size for size in sizes(turn, nodes) if size <= usable), 0)


def best(turn: Turn) -> Choice | None:
    """The nodes of an attempt that began now; None if there are too few.

    Nodes that are to be left, and nodes on which attempts failed repeatedly, train only if there are too few others.
    """
    state = turn.state
    nodes, history = candidates(turn), state.history
    avoid = history.gains.suspects | state.marks.nodes | frozenset(history.leaving)
    return choose(nodes, state.members, state.positions, sizes(turn, nodes), state.job.network, avoid)


def rung_of(rung: Rung | None, before: tuple[str, ...], chosen: Choice) -> Rung:
    """The rung of the attempt, corrected for nodes that have come and left since it was decided.

    Args:
        rung: None after a resize, where it follows from the nodes.
    """
    if chosen.has_shrunk:
        return Rung.SHRINK
    if rung is None:
        return Rung.GROW if len(chosen.nodes) > len(before) else Rung.SPARE
    return Rung.SPARE if rung is Rung.WORKERS and not set(before) <= set(chosen.nodes) else rung


def holders(turn: Turn, chosen: tuple[str, ...]) -> tuple[str, ...]:
    """Nodes that hold a part of the newest step, are connected, and no longer train."""
    state = turn.state
    if not state.job.has_checkpoint:
        return ()
    there = (Phase.READY, Phase.LEAVING)
    gone = {*chosen, *state.history.gains.suspects}
    before = [node for node in state.history.trained if node not in gone]
    return tuple(node for node in before if node in state.members and state.members[node].phase in there)
