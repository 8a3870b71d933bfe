"""20,000 schedules from one seed: nothing that must be true is broken in any of them."""

from __future__ import annotations

import pytest

from simulation.campaign import Tally, explain, run_on_all_cores

FIRST_SEED = 1_000_000
COUNT = 20_000
SHOWN = 3
YIELDS = 4  # to the tests beside it, which have deadlines; 10 took a tenth of a core where these keep both busy


@pytest.mark.long(seconds=100)
@pytest.mark.timeout(2000)  # a minute or two on two idle cores, and more where others keep them busy
def test_nothing_is_broken_in_20000_schedules() -> None:
    tally = Tally()
    for done in run_on_all_cores(COUNT, FIRST_SEED, nice=YIELDS):
        tally.add(done)
    simplest = sorted(tally.failures, key=lambda failure: len(failure.schedule.faults))
    assert not simplest, "\n\n".join(explain(failure) for failure in simplest[:SHOWN])
    assert tally.schedules == COUNT
    assert tally.outcomes["done"] > COUNT / 2, "most jobs survive their bad day"
