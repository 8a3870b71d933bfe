"""What a job comes to: its attempts, its faults and its time. Measured in a run, or as it should be."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from simulation.violation import Violation

if TYPE_CHECKING:
    from simulation.world import World

_LEAST_S, _PART = 4.0, 0.1  # by which the seconds may differ: delays are drawn


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a fault costs.

    Attributes:
        rungs: of the attempts, in order.
        faults: the kinds of the faults that are recorded.
        out: number of nodes that are out at the end.
        notes: number of recorded problems.
        outcome: of the job.
        seconds: from the start of the job to its end.
    """

    rungs: tuple[str, ...] = ("start",)
    faults: tuple[str, ...] = ()
    out: int = 0
    notes: int = 0
    outcome: str = "done"
    seconds: float


def check_cost(world: World, expected: Cost) -> None:
    """Compares a run that is over.

    Raises:
        Violation: it cost something else.
    """
    found = cost_of(world)
    for name in (item.name for item in fields(expected)):
        was, should = getattr(found, name), getattr(expected, name)
        if was != should and (name != "seconds" or abs(was - should) > max(_LEAST_S, _PART * should)):
            raise Violation("a fault costs what it must", f"{name}: {was}, not {should}; {found}")


def cost_of(world: World) -> Cost:
    """What a run that is over has cost."""
    out: set[str] = set()
    found: dict[str, list[Any]] = {"attempt_start": [], "fault": [], "problem": []}
    for event in world.folder.events:
        name = event["event"]
        if name in found:
            found[name].append(event.get("rung") or event.get("kind"))
        elif name == "node_out":
            out.add(event["node"])
        elif name == "node_back":
            out.discard(event["node"])
    return Cost(
        rungs=tuple(found["attempt_start"]),
        faults=tuple(found["fault"]),
        out=len(out),
        notes=len(found["problem"]),
        outcome=world.outcome[0] if world.outcome is not None else "",
        seconds=world.clock.now,
    )
