"""Nodes with a rank for which all others wait."""

from __future__ import annotations

from launcher.core.inputs import StragglerGone, StragglerSeen
from launcher.core.turn import Turn


def on_seen(turn: Turn, given: StragglerSeen) -> None:
    attempt, found = turn.attempt, given.straggler
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


def on_gone(turn: Turn, given: StragglerGone) -> None:
    turn.record("straggler_over", attempt=turn.attempt.number, node=given.node, step=turn.attempt.step)
