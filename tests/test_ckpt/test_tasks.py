"""Tasks with one owner: none outlives it, and no failure is silent."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ckpt.agent.tasks import Tasks


async def forever() -> None:
    await asyncio.Event().wait()


async def fail() -> None:
    raise ValueError("a fault of ours")


def test_a_task_that_nobody_awaits_logs_its_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        tasks, ended = Tasks(), asyncio.Event()
        tasks.start(fail())
        asyncio.get_running_loop().call_soon(ended.set)
        await ended.wait()
        await tasks.cancel()

    asyncio.run(test())
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "fail()" in caplog.text and "a fault of ours" in caplog.text


def test_the_failure_of_a_task_that_is_awaited_is_the_callers(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        with pytest.raises(ValueError, match="a fault of ours"):
            async with Tasks() as tasks:
                await tasks.hold(fail())

    asyncio.run(test())
    assert not caplog.records


def test_tasks_end_with_their_block_and_are_awaited() -> None:
    async def test() -> None:
        ends = []

        async def work() -> None:
            try:
                await forever()
            finally:
                await asyncio.sleep(0)
                ends.append(1)

        with pytest.raises(KeyError):
            async with Tasks() as tasks:
                held = tasks.hold(work())
                tasks.start(work())
                await asyncio.sleep(0)
                raise KeyError
        assert ends == [1, 1] and held.cancelled()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())


def test_a_task_that_cancels_all_is_spared() -> None:
    async def test() -> None:
        tasks = Tasks()
        other = tasks.hold(forever())

        async def drop() -> str:
            await tasks.cancel()
            return "dropped"

        assert await tasks.hold(drop()) == "dropped"
        assert other.cancelled()

    asyncio.run(test())
