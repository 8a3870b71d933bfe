"""How a job ends, and how an attempt does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.history.status import Status
from launcher.supervisor.faults import Fault

EXIT_CODES = {
    "done": 0,
    "stopped": 0,
    "halted": 0,
    "superseded": 0,
    "internal": 1,
    "user_error": 10,
    "no_progress": 11,
    "too_few_nodes": 12,
    "cancelled": 13,
    "fabric": 14,
}
# Where the outcome says it all.
REASONS = {
    "cancelled": "ended from outside: cancelled, or out of time",
    "stopped": "stopped at a step boundary; the job goes on from there when it starts again",
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        name: done, stopped (to go on after a requeue), halted (saved and ended, as a user asked), user_error,
            no_progress, too_few_nodes, cancelled, fabric or internal; superseded: another supervisor decides.
        step: the newest finished step; None if none is known.
        exit_code: the exit code that says so.
        reason: why, in words; for done, what was not saved.
        seconds: since this supervisor started.
    """

    name: str
    step: int | None
    exit_code: int
    reason: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt ended.

    Attributes:
        outcome: done, fault, stopped, halted or cancelled.
        faults: what ended it, the decisive one first; beside another outcome than fault, what kept the ranks from
            saving in a stop.
    """

    outcome: str
    faults: tuple[Fault, ...] = ()


def kept(status: Status, faults: Sequence[Fault] = ()) -> str:
    """What outlives a job that was halted: memory goes with the job. With the fault that kept the ranks from saving."""
    lower = {tier: step for tier, step in status.committed.items() if tier != "memory"}
    steps = ", ".join(f"step {step} in {tier}" for tier, step in lower.items())
    unsaved_at_stop = f"the ranks did not save in the stop: {faults[0].reason}; " if faults else ""
    return f"stopped for good, as asked; {unsaved_at_stop}kept: {steps or 'no step: none was saved below memory'}"


def unsaved(status: Status) -> str:
    """What a job that is done has not saved: nobody looks for a failed save in what ended well."""
    told = []
    for tier, why in status.unsaved.items():
        newest = status.committed.get(tier)
        there = "no step is there" if newest is None else f"the newest step there is {newest}"
        told.append(f"not saved in {tier}: {there} ({why})")
    return "; ".join(told)
