"""20,000 schedules from one seed: nothing that must be true is broken in any of them."""

from __future__ import annotations

import pytest

from simulation.campaign import explain, run_seeds

FIRST_SEED = 1_000_000
COUNT = 20_000
SHOWN = 3


@pytest.mark.timeout(900)  # a minute on an idle core
def test_nothing_is_broken_in_20000_schedules() -> None:
    tally = run_seeds(range(FIRST_SEED, FIRST_SEED + COUNT))
    simplest = sorted(tally.failures, key=lambda failure: len(failure.schedule.faults))
    assert not simplest, "\n\n".join(explain(failure) for failure in simplest[:SHOWN])
    assert tally.schedules == COUNT
    assert tally.outcomes["done"] > COUNT / 2, "most jobs survive their bad day"
