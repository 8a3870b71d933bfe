"""The formulas of the cadence against random failures of simulated jobs, from one node to 16,384 GPUs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.cadence import (
    LONGEST_S,
    SOURCES,
    SaveLevel,
    interval_s,
    interval_steps,
    observed_rate_hz,
    shares,
    training_ratio,
)
from simulation.save_intervals import levels, simulated


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("gpus", [8, 128, 1024, 4096, 16_384])
def test_the_ratio_is_that_of_simulated_jobs(gpus: int, source: str) -> None:
    of = levels(gpus, source)
    every_s = [interval_s(level) for level in of]
    expected = training_ratio(of, every_s)
    found = simulated(of, every_s, seed=gpus)
    assert found == pytest.approx(expected, abs=max(0.003, 0.1 * (1 - expected))), (expected, found)


@pytest.mark.parametrize("gpus", [1024, 16_384])
@pytest.mark.parametrize("stall_s", [0.1, 10.0])
def test_no_other_interval_is_better_by_more_than_the_noise(gpus: int, stall_s: float) -> None:
    of = levels(gpus, stall_s=stall_s)
    best = [interval_s(level) for level in of]
    ratio = simulated(of, best, seed=1)
    for level in range(len(of)):
        for factor in (0.25, 0.5, 2.0, 4.0):
            other = [each * (factor if at == level else 1) for at, each in enumerate(best)]
            if other[0] > other[1]:
                continue  # what is flushed was saved to memory first
            assert simulated(of, other, seed=1) < ratio + 0.004


@pytest.mark.parametrize(("every_s", "measured"), [(60.0, 0.992), (300.0, 0.980), (1800.0, 0.915)])
def test_the_ratio_is_that_of_the_simulated_decision_core(every_s: float, measured: float) -> None:
    """docs/measurements.md, 2,048 nodes for 30 days: a save costs 0.1 s, and the next step is 32 s after a fault."""
    rate_hz = 16_384 / (SOURCES["llama3"].gpu_hours * 3600)
    of = [SaveLevel(name="memory", cost_s=0.1, rate_hz=rate_hz, restart_s=32.0)]
    assert training_ratio(of, [every_s]) == pytest.approx(measured, abs=0.005)


def test_the_lost_time_of_llama_3s_job_is_a_few_percent() -> None:
    of = levels(16_384)
    every_s = [interval_s(level) for level in of]
    assert 0.9 < training_ratio(of, every_s) < 0.98
    assert 60 < every_s[0] < 200 and 300 < every_s[1] < 1200


@given(st.floats(0, 1e4), st.floats(1e-9, 10.0), st.floats(0, 1e4))
def test_an_interval_is_never_below_its_floor_nor_longer_than_nobody_would_wait(
    cost_s: float, rate_hz: float, delay_s: float
) -> None:
    level = SaveLevel(name="x", cost_s=cost_s, rate_hz=rate_hz, delay_s=delay_s)
    assert level.floor_s <= interval_s(level) <= max(level.floor_s, LONGEST_S)
    assert 0.0 <= training_ratio([level], [interval_s(level) or 1.0]) <= 1.0


def test_what_fails_seldom_is_saved_seldom_and_what_never_fails_at_the_longest_interval() -> None:
    seldom, often = (SaveLevel(name="x", cost_s=1.0, rate_hz=rate_hz) for rate_hz in (1e-6, 1e-4))
    assert interval_s(seldom) == pytest.approx(10 * interval_s(often), rel=0.01)
    assert interval_s(often) == pytest.approx(math.sqrt(2 * 1e4), rel=0.01)
    assert interval_s(SaveLevel(name="x", cost_s=1.0, rate_hz=0.0)) == LONGEST_S
    assert interval_steps(often, 1000.0) == 1 and interval_steps(often, 1.41) == 100


@pytest.mark.parametrize("tiers", [0, 1, 2, 3])
def test_every_failure_is_restored_from_somewhere(tiers: int) -> None:
    found = shares(tiers, 0.1)
    assert len(found) == tiers + 1 and sum(found) == pytest.approx(1.0) and found == sorted(found, reverse=True)


def test_a_job_learns_its_own_rate_of_failures() -> None:
    prior_hz = 1 / 3600
    assert observed_rate_hz(prior_hz, 0, 0.0) == pytest.approx(prior_hz)
    assert observed_rate_hz(prior_hz, 0, 9 * 3600.0) == pytest.approx(prior_hz / 10)
    assert observed_rate_hz(prior_hz, 99, 9 * 3600.0) == pytest.approx(10 * prior_hz)
    assert observed_rate_hz(0.0, 3, 30.0) == pytest.approx(0.1)
