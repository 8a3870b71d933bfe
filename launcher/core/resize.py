"""Growing and shrinking: which size the job is to have, and when an attempt makes way for one of another size."""

from __future__ import annotations

from launcher.core.inputs import AllocationAsked, AllocationsSeen, ScaleAsked
from launcher.core.state import Job
from launcher.core.turn import Turn


def allowed(job: Job, nodes: int) -> int:
    """The largest allowed size that is not above `nodes`; the smallest one where all are."""
    return next((size for size in job.sizes if size <= nodes), job.sizes[-1])


def on_scale(turn: Turn, given: ScaleAsked) -> None:
    turn.record("scale_requested", nodes=allowed(turn.state.job, given.nodes))


def on_asked(turn: Turn, given: AllocationAsked) -> None:
    """A booster was asked for."""


def on_seen(turn: Turn, given: AllocationsSeen) -> None:
    """How the boosters stand."""
