"""Jobs with random failures and saves at fixed intervals: what the formulas of the cadence are compared with."""

from __future__ import annotations

import random
from collections.abc import Sequence

from ckpt.cadence import SOURCES, SaveLevel, shares

FAILURES = 1000  # of one simulated job: its ratio is then known to a few tenths of a percent


def levels(gpus: int, source: str = "llama3", stall_s: float = 1.0, flush_s: float = 90.0) -> list[SaveLevel]:
    """Memory and a shared directory. A flush slows training by 2 % while it runs."""
    rate_hz = gpus / (SOURCES[source].gpu_hours * 3600)
    memory, shared = shares(1, SOURCES[source].beyond)
    return [
        SaveLevel(name="memory", cost_s=stall_s, rate_hz=rate_hz * memory, delay_s=5.0, restart_s=45.0),
        SaveLevel(name="shared", cost_s=0.02 * flush_s, rate_hz=rate_hz * shared, delay_s=flush_s, restart_s=180.0),
    ]


def simulated(levels: Sequence[SaveLevel], every_s: Sequence[float], seed: int) -> float:
    """The ratio of a job that is played from failure to failure, each at a random time and of a random level.

    Nothing of the formulas is in it: saves are at their multiples of work, one counts once its commit is over, a
    failure rolls back to the newest save of a level that survives it, and what is lost is trained again.
    """
    rng = random.Random(seed)
    rates = [level.rate_hz for level in levels]
    now_s = begun = stored = 0.0  # `stored`: the work that all levels have, which the job was restored from

    def time_to(work: float) -> float:
        """Seconds of this life until some work is done, with the saves up to it."""
        passed = zip(levels, every_s, strict=True)
        return work - begun + sum(level.cost_s * (work // each - begun // each) for level, each in passed)

    for _ in range(FAILURES):
        life_s = rng.expovariate(sum(rates))
        low, high = begun, begun + life_s
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if time_to(middle) <= life_s else (low, middle)
        (hit,) = rng.choices(range(len(levels)), rates)
        newest = stored
        for level, each in zip(levels[hit:], every_s[hit:], strict=True):
            save = low // each * each
            while save > begun and time_to(save) + level.delay_s > life_s:
                save -= each
            newest = max(newest, save if save > begun else 0.0)
        now_s += life_s + levels[hit].restart_s
        begun = stored = newest
    return begun / now_s
