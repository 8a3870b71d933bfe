"""Many schedules: how fast, what they met, and which of them failed."""

from __future__ import annotations

import gc
import os
import signal
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from simulation.costs import Cost, check_cost
from simulation.schedule import Schedule, draw
from simulation.shrink import shrink
from simulation.trace import Trace
from simulation.violation import Violation
from simulation.world import World

BATCH = 500
LONGEST_S = 20.0  # CPU seconds of one schedule, 5,000 times the usual: then a decision does not end


@dataclass
class Failure:
    """A schedule that failed.

    Attributes:
        seed: that gave it; None for one that was kept.
        rule: what was broken.
        text: how.
    """

    schedule: Schedule
    rule: str
    text: str
    seed: int | None = None


@dataclass
class Tally:
    """What a number of schedules came to."""

    schedules: int = 0
    decisions: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    rungs: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    worst_recovery_s: float = 0.0
    worst_seed: int = 0
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.decisions += other.decisions
        self.faults += other.faults
        self.rungs += other.rungs
        self.outcomes += other.outcomes
        if other.worst_recovery_s > self.worst_recovery_s:
            self.worst_recovery_s, self.worst_seed = other.worst_recovery_s, other.worst_seed
        self.failures += other.failures


def run_one(
    schedule: Schedule, tally: Tally | None = None, seed: int | None = None, cost: Cost | None = None, **core: Any
) -> Failure | None:
    """Runs one schedule; how it failed, or None.

    Args:
        schedule: what happens.
        tally: takes account of it.
        seed: that gave it.
        cost: what it must cost; None where that cannot be said.
        core: `decide`, `begin` and `trace` of the World.
    """
    world = World(schedule, **core)
    failure = None
    before = signal.signal(signal.SIGVTALRM, _on_alarm)
    signal.setitimer(signal.ITIMER_VIRTUAL, LONGEST_S)
    try:
        outcome, _ = world.run()
        if cost is not None:
            check_cost(world, cost)
    except Violation as violation:
        failure = Failure(schedule, violation.rule, str(violation), seed)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} in {place.name} ({place.filename.rpartition('/')[2]}:{place.lineno})"
        failure = Failure(schedule, "no crash", text, seed)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    if tally is not None:
        tally.schedules += 1
        tally.decisions += world.decisions
        tally.faults.update(world.injected)
        tally.rungs += world.rungs
        if world.worst_recovery_s > tally.worst_recovery_s:
            tally.worst_recovery_s, tally.worst_seed = world.worst_recovery_s, seed or 0
        if failure is None:
            tally.outcomes[outcome] += 1
        else:
            tally.failures.append(failure)
    return failure


def run_seeds(seeds: range, **core: Any) -> Tally:
    """Runs the schedules of seeds."""
    tally = Tally()
    for seed in seeds:
        run_one(draw(seed), tally, seed, **core)
    return tally


def run_on_all_cores(count: int, first_seed: int, jobs: int | None = None, nice: int = 0) -> Iterator[Tally]:
    """Runs the schedules of `count` seeds in processes; gives the tally of each batch, in the order of the seeds.

    Args:
        count: number of schedules.
        first_seed: of the first schedule; the next has the next.
        jobs: number of processes; None: one for each core.
        nice: by how much the processes yield to others.
    """
    end = first_seed + count
    batches = [range(at, min(at + BATCH, end)) for at in range(first_seed, end, BATCH)]
    with ProcessPoolExecutor(jobs or os.cpu_count(), initializer=_begin_process, initargs=(nice,)) as pool:
        yield from pool.map(run_seeds, batches)


def _begin_process(nice: int) -> None:
    """A schedule makes many objects that die with it: the collector has little to find."""
    os.nice(nice)
    gc.freeze()
    gc.set_threshold(50_000)


def explain(failure: Failure, **core: Any) -> str:
    """The failure, the simplest schedule that fails so, and what happens in it."""

    def fails(schedule: Schedule) -> bool:
        found = run_one(schedule, **core)
        return found is not None and found.rule == failure.rule

    simplest = shrink(failure.schedule, fails)
    trace = Trace()
    found = run_one(simplest, trace=trace, **core) or failure
    head = f"seed {failure.seed}: " if failure.seed is not None else ""
    return f"{head}{found.text}\n\n{simplest}\n\n{trace}\n\n{found.text}"


def _on_alarm(number: int, frame: object) -> None:
    raise Violation("every decision ends", f"no end after {LONGEST_S:g} s of CPU time")
