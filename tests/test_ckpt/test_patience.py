"""Waits: they end at their deadline, with the work, or when they are not wanted any more."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.base.deadlines import within


async def answer_of(question: asyncio.Future[str]) -> str:
    return await question


def test_what_the_work_returns_or_raises_comes_through() -> None:
    async def fail() -> None:
        raise OSError("disk")

    async def test() -> None:
        assert await within(60, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(OSError, match="disk"):
            await within(60, fail())

    asyncio.run(test())


def test_work_that_takes_too_long_is_ended_before_its_time_out_is_told() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def test() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await within(0.01, work())
        assert ended

    asyncio.run(test())


@pytest.mark.parametrize("turns", range(6))
def test_whoever_is_cancelled_as_the_answer_comes_ends(turns: int) -> None:
    """Wherever in the turns of the event loop between the answer and its receipt."""

    async def test() -> None:
        question: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(within(60, answer_of(question)))
        for _ in range(3):
            await asyncio.sleep(0)
        question.set_result("yes")
        for _ in range(turns):
            await asyncio.sleep(0)
        if waiting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            assert waiting.result() == "yes"

    asyncio.run(test())
