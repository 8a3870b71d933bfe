"""The simplest schedule that still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from simulation.schedule import Fault, Schedule, Setup

_SIMPLER_S = (0.0, 1.0, 3.0, 10.0, 30.0)


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool], most_runs: int = 400) -> Schedule:
    """Drops faults, then simplifies what is left, as long as `fails` stays true.

    Args:
        schedule: one that fails.
        fails: runs a schedule.
        most_runs: how often.
    """
    is_simpler = True
    while is_simpler:
        is_simpler = False
        for candidate in _simpler(schedule):
            if most_runs <= 0:
                return schedule
            most_runs -= 1
            if fails(candidate):
                schedule, is_simpler = candidate, True
                break
    return schedule


def _simpler(schedule: Schedule) -> Iterator[Schedule]:
    """Candidates, the boldest first."""
    setup, faults = schedule.setup, schedule.faults
    for index in range(len(faults)):
        yield Schedule(setup, faults[:index] + faults[index + 1 :])
    for item in fields(Setup):
        if item.name != "seed" and getattr(setup, item.name) != item.default:
            yield Schedule(replace(setup, **{item.name: item.default}), faults)
    for index, fault in enumerate(faults):
        for simpler in _simpler_faults(fault):
            yield Schedule(setup, (*faults[:index], simpler, *faults[index + 1 :]))


def _simpler_faults(fault: Fault) -> Iterator[Fault]:
    for name in ("node", "flag"):
        if getattr(fault, name):
            yield replace(fault, **{name: 0})
    for name in ("at_s", "lasts_s"):
        value = getattr(fault, name)
        for simpler in _SIMPLER_S:
            if simpler < value:
                yield replace(fault, **{name: simpler})
