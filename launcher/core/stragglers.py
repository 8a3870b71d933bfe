"""Nodes with a rank for which all others wait. With `straggler: {action: swap}` a spare takes such a node's place.

A rank that is slow on a second node has more work than the others: no spare helps, and its node is only reported.
"""

from __future__ import annotations

from launcher.core import departure
from launcher.core.inputs import StragglerGone, StragglerSeen
from launcher.core.marks import DepartureCause
from launcher.core.turn import Turn
from launcher.diagnosis.slow_rank import slow_words


def on_seen(turn: Turn, given: StragglerSeen) -> None:
    attempt, found = turn.attempt, given.straggler
    left = turn.state.history.slow.get(found.rank)
    turn.record(
        "straggler",
        attempt=attempt.number,
        node=found.node,
        step=attempt.step,
        rank=found.rank,
        ranks=found.ranks,
        factor=round(found.factor, 3),
        part=found.part,
        excess_s=round(found.excess_s, 6),
        since=round(found.since_s, 3),
        switch=found.switch,
    )
    if not turn.state.job.swaps_stragglers or found.node not in attempt.nodes:
        return
    if found.switch is not None:
        what = f"the job stays on {found.node}: most nodes of its switch are slow, and the node may not be the cause"
        turn.record("problem", attempt=attempt.number, node=found.node, what=what)
    elif left is not None and left != found.node:
        what = f"rank {found.rank} is slow on {found.node} as it was on {left}: it has more work than the others"
        turn.record("problem", attempt=attempt.number, node=found.node, what=what, detail="no spare takes its place")
    else:
        reason = f"slow: {slow_words(found.rank, found.ranks, found.factor, found.part)}"
        departure.mark(turn, found.node, DepartureCause.SLOW, reason)


def on_gone(turn: Turn, given: StragglerGone) -> None:
    turn.record("straggler_over", attempt=turn.attempt.number, node=given.node, step=turn.attempt.step)
    departure.unmark(turn, given.node, DepartureCause.SLOW)
