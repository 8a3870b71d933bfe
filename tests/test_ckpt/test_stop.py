"""All ranks stop at one step boundary, wherever each of them is when the stop is asked for."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from agent_kit import World, config, run, until

from ckpt.memory.board import Board


class Loop:
    """A training loop's view of the board, as the trainer's side keeps to it: row, gate, stop."""

    def __init__(self, ram_dir: Path, local_rank: int, rank: int) -> None:
        self.board = Board.open(ram_dir)
        self.local_rank = local_rank
        self.rank = rank
        self.boundary = 0

    async def reach_boundary(self) -> bool:
        """True when all stop here."""
        self.boundary += 1
        self.write()
        while 0 < self.board.gate <= self.boundary:
            await asyncio.sleep(0.001)
        return 0 < self.board.stop_at <= self.boundary

    def write(self) -> None:
        self.board.write_row(self.local_rank, rank=self.rank, attempt=0, boundary=self.boundary, step=self.boundary)


def loops(world: World) -> list[Loop]:
    return [Loop(worker.place.ram_dir, worker.local_rank, worker.rank) for worker in world.workers]


async def stops_at(loop: Loop, barrier: list[int], step_s: float) -> int:
    """Steps until told to stop. A step's collective needs every rank to have come as far as this one."""
    while not await loop.reach_boundary():
        barrier[loop.rank] += 1
        while min(barrier) < barrier[loop.rank]:
            await asyncio.sleep(0)
        await asyncio.sleep(step_s * random.random())
    return loop.boundary


@pytest.mark.parametrize("step_s", [0.0, 0.003, 0.03])
def test_ranks_that_wait_for_each_other_in_every_step_stop_together(tmp_path, step_s):
    async def test():
        async with World(tmp_path, ["a", "b", "c"], 0, config(), ranks_per_node=2) as world:
            barrier = [0] * 6
            running = [asyncio.ensure_future(stops_at(loop, barrier, step_s)) for loop in loops(world)]
            await until(lambda: min(barrier) > 3)
            for monitor in world.monitors:  # any may ask, and all may
                monitor.send(op="stop")
            stopped = await asyncio.wait_for(asyncio.gather(*running), 20)
            assert len(set(stopped)) == 1
            for monitor in world.monitors:
                assert (await monitor.event("stop_agreed"))["boundary"] == stopped[0]

    run(test)


def test_the_boundary_is_one_after_the_furthest_rank(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            first, second = loops(world)
            first.boundary, second.boundary = 7, 5
            first.write()
            second.write()
            world.monitors[1].send(op="stop")
            assert (await world.monitors[0].event("stop_agreed"))["boundary"] == 8
            assert not await second.reach_boundary() and not await second.reach_boundary()
            assert await second.reach_boundary() and await first.reach_boundary()
            assert first.boundary == second.boundary == 8

    run(test)


def test_a_stop_before_the_first_boundary_stops_at_the_first(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            world.monitors[0].send(op="stop")
            assert (await world.monitors[1].event("stop_agreed"))["boundary"] == 1
            assert all([await loop.reach_boundary() for loop in loops(world)])

    run(test)


def test_asking_again_is_answered_with_the_same_boundary(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            for count in (1, 2):
                world.monitors[0].send(op="stop")
                await until(lambda count=count: len(world.monitors[0].seen("stop_agreed")) == count)
            assert {event["boundary"] for event in world.monitors[0].seen("stop_agreed")} == {1}

    run(test)


def test_rows_of_an_earlier_attempt_do_not_count(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            loop = loops(world)[0]
            loop.boundary = 100
            loop.write()
        async with World(tmp_path, ["a"], 1, config()) as world:
            world.monitors[0].send(op="stop")
            assert (await world.monitors[0].event("stop_agreed"))["boundary"] == 1

    run(test)


def test_when_the_other_agents_are_lost_nobody_waits_at_the_gate(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            first = loops(world)[0]
            world.fake.dead.add(1)
            world.monitors[0].send(op="stop")
            await until(lambda: first.board.gate)
            world.fake.transports[0].fail = "MPI_ERR_PROC_FAILED"
            assert not await first.reach_boundary()
            assert not first.board.gate

    run(test)
