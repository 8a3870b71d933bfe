"""When a job is told that its time limit is near."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from launcher.supervisor.time_limit import ASK_EVERY_S, MARGIN_S, until_near
from slurm import SlurmError


def told_after_s(left_s: Callable[[float], float | None], *, has_just_begun: bool = True) -> float:
    """When the warning comes, in seconds from the start. `left_s` is the scheduler's answer at a time."""
    now_s = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        if now_s > 1e6:
            raise TimeoutError

    asyncio.run(until_near(lambda: left_s(now_s), has_just_begun=has_just_begun, sleep=sleep))
    return now_s


def test_the_warning_comes_as_long_before_the_end_as_slurms() -> None:
    assert told_after_s(lambda now_s: 3600.0 - now_s) == 3600.0 - MARGIN_S


def test_a_limit_that_is_shortened_or_extended_meanwhile_counts() -> None:
    assert 1000.0 - MARGIN_S <= told_after_s(lambda now_s: (3600.0 if now_s < 500 else 1000.0) - now_s) <= 910.0
    assert told_after_s(lambda now_s: (600.0 if now_s < 500 else 3600.0) - now_s) == 3600.0 - MARGIN_S


def test_without_a_limit_there_is_no_warning() -> None:
    with pytest.raises(TimeoutError):
        told_after_s(lambda now_s: None)


def test_a_scheduler_that_is_away_is_asked_again() -> None:
    def answer(now_s: float) -> float:
        if now_s < 3 * ASK_EVERY_S:
            raise SlurmError("no answer")
        return 1000.0 - now_s

    assert told_after_s(answer) == 1000.0 - MARGIN_S


def test_a_job_shorter_than_the_margin_trains_for_half_of_its_time() -> None:
    assert told_after_s(lambda now_s: 60.0 - now_s) == 30.0


def test_one_that_takes_over_late_warns_at_once() -> None:
    assert told_after_s(lambda now_s: 60.0 - now_s, has_just_begun=False) == 0.0
