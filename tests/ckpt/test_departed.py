"""Ranks end at different steps: what one of them ended without is dropped and told, and nobody waits for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainer_kit
from agent_kit import DEADLINES, Link, Worker, World, config, content, run, until

from ckpt import Checkpointer
from ckpt.worker.timeouts import WorkerDeadlines

ENDLESS = replace(DEADLINES, seal_s=3600, protect_s=3600)  # a wait for what never comes outlasts the test
WORLDS = [(["a", "b"], 1), (["a"], 2), (["a", "b"], 2)]  # nodes, ranks on each


def world_of(root: Path, nodes: list[str], ranks_per_node: int, attempt: int = 0, keep: int = 2) -> World:
    return World(root, nodes, attempt, config(keep=keep), ranks_per_node=ranks_per_node, deadlines=ENDLESS)


async def told(world: World, step: int, rank: int) -> None:
    """What the launcher hears of a save that was dropped."""
    problem = await world.monitors[0].event("problem", what="save dropped", step=step, failed="memory")
    assert f"rank {rank} has ended without saving it, so it is not complete" in problem["detail"]
    assert "the newest complete step stays" in problem["detail"]


async def once_handed_in(worker: Worker, slot: int) -> None:
    await until((worker.place.ram_dir / f"own-{worker.local_rank}-{slot}.json").exists)


async def again(worker: Worker, session: int) -> Worker:
    """The rank with another Checkpointer."""
    renewed = await Worker(worker.place, worker.local_rank, session).connect()
    await renewed.request("plan")
    return renewed


@pytest.mark.parametrize(("nodes", "ranks_per_node"), WORLDS)
@pytest.mark.parametrize("first", ["the save", "the end"])
@pytest.mark.parametrize("ended", [0, -1], ids=["first rank", "last rank"])
def test_what_a_rank_ended_without_is_dropped_and_the_newest_complete_step_stays(
    tmp_path: Path, nodes: list[str], ranks_per_node: int, first: str, ended: int
) -> None:
    async def test() -> None:
        async with world_of(tmp_path, nodes, ranks_per_node) as world:
            await world.save(10, 0)
            gone, others = (
                world.workers[ended],
                [worker for worker in world.workers if worker is not world.workers[ended]],
            )
            if first == "the end":
                gone.send(op="bye")
                await gone.request("flush")
            for worker in others:
                worker.save(20, 1)
            if first == "the save":
                for worker in others:
                    await once_handed_in(worker, 1)
                gone.send(op="bye")
            await told(world, 20, gone.rank)
            for worker in others:
                await worker.event("dropped", step=20)
                worker.send(op="bye")
                await worker.request("flush")
        async with world_of(tmp_path, nodes, ranks_per_node, attempt=1) as world:
            assert (await world.plan())["step"] == 10
            size = len(world.workers)
            assert await world.contents(size) == [content(rank, 10) for rank in range(size)]

    run(test)


@pytest.mark.parametrize(("nodes", "ranks_per_node"), WORLDS)
def test_what_a_rank_handed_in_before_it_ended_is_completed_by_the_others(
    tmp_path: Path, nodes: list[str], ranks_per_node: int
) -> None:
    async def test() -> None:
        async with world_of(tmp_path, nodes, ranks_per_node) as world:
            await world.plan()
            *others, gone = world.workers
            gone.save(10, 0)
            gone.send(op="bye")  # before the shard is sealed
            await once_handed_in(gone, 0)
            for worker in others:
                worker.save(10, 0)
            for worker in world.workers:
                await worker.event("committed", step=10)
            assert not world.monitors[0].seen("problem")

    run(test)


def test_ranks_that_saved_at_different_steps_wait_for_none_of_them_when_they_have_all_ended(tmp_path: Path) -> None:
    """Not only newer steps than a rank's last one lack its shard."""

    async def test() -> None:
        async with world_of(tmp_path, ["a", "b"], 1, keep=3) as world:
            first, second = world.workers
            first.save(10, 0)
            first.save(20, 1)
            second.save(15, 0)
            for worker in world.workers:
                worker.send(op="bye")
            for worker in world.workers:
                await worker.request("flush")
            for step, rank in ((10, 1), (15, 0), (20, 1)):
                await told(world, step, rank)

    run(test)


def test_a_rank_that_comes_back_with_another_checkpointer_saves_with_the_others_again(tmp_path: Path) -> None:
    async def test() -> None:
        async with world_of(tmp_path, ["a", "b"], 1) as world:
            first, second = world.workers
            await world.save(10, 0)
            second.send(op="bye")
            first.save(20, 1)  # of the Checkpointer that the other has closed
            await told(world, 20, 1)
            second = await again(second, session=2)
            first.save(30, 1)
            second.save(30, 1)
            await first.event("committed", step=30)
            await second.close()

    run(test)


def test_the_end_of_a_checkpointer_that_is_heard_after_the_next_has_opened_ends_nothing(tmp_path: Path) -> None:
    """They have a connection each."""

    async def test() -> None:
        async with world_of(tmp_path, ["a", "b"], 1) as world:
            first, second = world.workers
            await world.plan()
            renewed = await again(second, session=2)
            second.send(op="bye")
            await second.request("flush")
            first.save(10, 0)
            renewed.save(10, 0)
            await first.event("committed", step=10)
            await renewed.close()

    run(test)


@pytest.mark.parametrize(("nodes", "ranks_per_node"), WORLDS)
def test_what_is_saved_with_the_next_checkpointer_waits_for_the_rank_that_has_yet_to_open_it(
    tmp_path: Path, nodes: list[str], ranks_per_node: int
) -> None:
    async def test() -> None:
        async with world_of(tmp_path, nodes, ranks_per_node) as world:
            await world.save(10, 0)
            for worker in world.workers:
                worker.send(op="bye")
                await worker.request("flush")
            renewed: list[Link] = []
            for worker in world.workers:
                renewed.append(at_once := await again(worker, session=2))
                at_once.save(20, 1)
                await once_handed_in(at_once, 1)
            for worker in renewed:
                await worker.event("committed", step=20)
            assert not world.monitors[0].seen("problem")
            for worker in renewed:
                await worker.close()

    run(test)


def checkpointer(world: World, rank: int) -> Checkpointer:
    """One whose `close` may wait for ever."""
    worker = world.workers[rank]
    return trainer_kit.checkpointer(
        worker.place, config(), rank=rank, local_rank=worker.local_rank, deadlines=WorkerDeadlines(flush_s=3600)
    )


async def closed(*ckpts: Checkpointer) -> None:
    await asyncio.gather(*(asyncio.to_thread(ckpt.close) for ckpt in ckpts))


@pytest.mark.parametrize(("nodes", "ranks_per_node"), WORLDS[:2])
def test_ranks_close_at_different_steps_without_a_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, nodes: list[str], ranks_per_node: int
) -> None:
    async def test() -> None:
        async with world_of(tmp_path, nodes, ranks_per_node) as world:
            ckpts = [checkpointer(world, rank) for rank in range(2)]
            state: dict[str, Any] = {"x": np.zeros(1000)}
            for step, ranks in ((1, [0, 1]), (2, [0])):
                for rank in ranks:
                    await asyncio.to_thread(ckpts[rank].save, step, state)
            await closed(*ckpts)
            await told(world, 2, 1)
            reason = f"node {nodes[-1]}: rank 1 has ended without saving it"
            assert f"rank 0: step 2 was dropped before it was committed: {reason}" in caplog.text
        async with world_of(tmp_path, nodes, ranks_per_node, attempt=1) as world:
            assert (await world.plan())["step"] == 1

    run(test)


def test_a_checkpointer_for_each_save_loses_none(tmp_path: Path) -> None:
    """The first rank has its next one open, and a step saved, before the other has."""

    async def test() -> None:
        async with world_of(tmp_path, ["a", "b"], 1) as world:
            for step in range(1, 4):
                ckpts = []
                for rank in range(2):
                    ckpts.append(checkpointer(world, rank))
                    await asyncio.to_thread(ckpts[rank].save, step, {"x": np.zeros(1000)})
                    await until(lambda rank=rank: list(world.places[rank].ram_dir.glob("own-*.json")))
                await world.workers[0].event("committed", step=step)
                await closed(*ckpts)
            assert not world.monitors[0].seen("problem")

    run(test)


@pytest.mark.parametrize(("nodes", "ranks_per_node"), WORLDS[:2])
@pytest.mark.parametrize("closes", ["before the agents are lost", "while there are none", "while the next start"])
def test_agents_in_the_place_of_lost_ones_know_who_has_closed_its_checkpointer(
    tmp_path: Path, nodes: list[str], ranks_per_node: int, closes: str
) -> None:
    async def test() -> None:
        state: dict[str, Any] = {"x": np.zeros(1000)}
        async with world_of(tmp_path, nodes, ranks_per_node) as world:
            stays, goes = ckpts = [checkpointer(world, rank) for rank in range(2)]
            for ckpt in ckpts:
                await asyncio.to_thread(ckpt.save, 10, state)
            await world.workers[0].event("committed", step=10)
            if closes == "before the agents are lost":
                await closed(goes)
        if closes == "while there are none":
            await closed(goes)
        elif closes == "while the next start":
            goes._engine.connect()._closed.set()  # it looks for no other agent any more, nor will it find one
        again = World(tmp_path, nodes, 0, config(), ranks_per_node=ranks_per_node, deadlines=ENDLESS, generation=1)
        async with again as world:
            await world.workers[1].close()
            await world.monitors[0].event("rejoined", step=10)
            if closes == "while the next start":
                await closed(goes)
            session = stays._engine.connect()
            await until(lambda: session._generation == 1)
            await asyncio.to_thread(stays.save, 20, state)
            await told(world, 20, 1)
            await closed(stays)

    run(test)
