"""When a job is told that its time limit is near."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from launcher.supervisor.time_limit import ASK_EVERY_S, MARGIN_S, SHORT_S, until_near
from slurm import SlurmError


def told_after_s(
    left_s: Callable[[float], float | None], *, has_just_begun: bool = True, warned_at_s: float = math.inf
) -> float:
    """When the job is to stop, in seconds from the start.

    Args:
        left_s: the scheduler's answer at a time.
        has_just_begun: as until_near has it.
        warned_at_s: when the scheduler, or somebody, sends a warning.
    """
    now_s = 0.0

    async def pause(warned: asyncio.Event, seconds: float) -> None:
        nonlocal now_s
        if now_s < warned_at_s <= now_s + seconds:
            now_s = warned_at_s
            warned.set()
        else:
            now_s += seconds
        if now_s > 1e6:
            raise TimeoutError

    async def scenario() -> None:
        await until_near(
            lambda: left_s(now_s), asyncio.Event(), has_just_begun=has_just_begun, pause=pause, clock=lambda: now_s
        )

    asyncio.run(scenario())
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


def test_a_warning_that_comes_earlier_counts() -> None:
    """`--signal=B:USR1@300`, and somebody who sends it by hand."""
    assert told_after_s(lambda now_s: 3600.0 - now_s, warned_at_s=3260.0) == 3260.0
    assert told_after_s(lambda now_s: 86400.0 - now_s, warned_at_s=10.0) == 10.0
    assert told_after_s(lambda now_s: None, warned_at_s=10.0) == 10.0


def test_a_warning_at_once_to_a_short_job_leaves_it_half_of_its_time() -> None:
    """It would stop and be requeued for ever without a step."""
    assert told_after_s(lambda now_s: 120.0 - now_s, warned_at_s=1.0) == 60.0
    assert told_after_s(lambda now_s: SHORT_S - now_s, warned_at_s=20.0) == SHORT_S / 2
    assert told_after_s(lambda now_s: 120.0 - now_s, warned_at_s=1.0, has_just_begun=False) == 1.0


def test_the_half_of_a_limit_that_is_set_meanwhile_counts_from_the_jobs_start() -> None:
    assert told_after_s(lambda now_s: None if now_s < 40 else 120.0 - now_s, warned_at_s=40.0) == 60.0


def test_a_warning_counts_while_the_scheduler_is_away() -> None:
    def answer(now_s: float) -> float:
        raise SlurmError("no answer")

    assert told_after_s(answer, warned_at_s=10.0) == 10.0
