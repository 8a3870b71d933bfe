"""`every_s`: which saves go to a tier by the clock, restarts and jumps of the wall's clock notwithstanding."""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from agent_kit import NAMESPACE, World, run

from ckpt.agent.flush.leader import FlushLeader
from ckpt.config import CheckpointConfig
from ckpt.memory.board import Board
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier
from ckpt.worker.boundaries import Cadence

YEAR_S = 365 * 86400.0


class Clocks:
    """Seconds as the agents count them, and the wall's clock, which goes with them until it jumps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.ahead_s = 1000.0, 1.8e9
        monkeypatch.setattr(time, "time", lambda: self.now_s + self.ahead_s)
        make = FlushLeader.__init__
        monkeypatch.setattr(
            FlushLeader,
            "__init__",
            lambda lead, *parts: make(lead, *parts, lambda: self.now_s),
        )


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def every(tmp_path: Path, kind: str, every_s: int = 60, every_steps: int = 1000) -> CheckpointConfig:
    tier = {"path": str(tmp_path / kind), "every_steps": every_steps, "every_s": every_s, "keep": 100}
    section = {"namespace": NAMESPACE, "redundancy": {"scheme": "none"}, kind: tier}
    return CheckpointConfig.from_mapping(section)


def steps_in(tmp_path: Path, kind: str) -> list[int]:
    path = tmp_path / kind
    tier = NvmeTier(path, NAMESPACE, node="a") if kind == "nvme" else SharedTier(path, NAMESPACE)
    return sorted(save.step for save in tier.steps())


async def train(world: World, clocks: Clocks, steps: range, step_s: float) -> None:
    """Saves each step; one takes so many seconds."""
    for step in steps:
        clocks.now_s += step_s
        await world.save(step, step % 2)
        await world.await_saves()


def attempt(
    tmp_path: Path, number: int, checkpoint: CheckpointConfig, then: Callable[[World], Awaitable[None]]
) -> None:
    """The agents of one attempt on node a, from their restore to their end."""

    async def test() -> None:
        async with World(tmp_path, ["a"], number, checkpoint) as world:
            await world.plan()
            await world.await_saves()  # a step that was late has gone
            await then(world)
            assert not world.monitors[0].seen("problem")

    run(test)


@pytest.mark.parametrize("kind", ["shared", "nvme"])
@pytest.mark.parametrize(
    ("step_s", "expected"),
    [
        (1.0, [60]),
        (20.0, [3, 6, 9, 12, 15, 18, 21]),
        (25.0, [3, 6, 9, 12, 15, 18, 21]),  # the first one after 60 s, not one every 60 s
        (59.0, [2, 4, 6, 8, 10]),
        (60.0, [1, 2, 3, 4, 5]),
        (7200.0, [1, 2, 3]),
    ],
)
def test_the_first_save_goes_that_comes_so_long_after_the_last_that_went(
    tmp_path: Path, clocks: Clocks, kind: str, step_s: float, expected: list[int]
) -> None:
    async def then(world: World) -> None:
        await train(world, clocks, range(1, expected[-1] + 1), step_s)

    attempt(tmp_path, 0, every(tmp_path, kind), then)
    assert steps_in(tmp_path, kind) == expected


def test_steps_and_seconds_together_and_each_starts_the_seconds_anew(tmp_path: Path, clocks: Clocks) -> None:
    async def then(world: World) -> None:
        await train(world, clocks, range(1, 15), 20.0)

    attempt(tmp_path, 0, every(tmp_path, "shared", every_steps=5), then)
    assert steps_in(tmp_path, "shared") == [3, 5, 8, 10, 13]


@pytest.mark.parametrize("kind", ["shared", "nvme"])
def test_a_run_that_starts_again_more_often_than_that_is_due_all_the_same(
    tmp_path: Path, clocks: Clocks, kind: str
) -> None:
    """40 s an attempt: no agent lives to see 60 s. What is restored goes as soon as it is late."""
    checkpoint = every(tmp_path, kind)
    went = []
    for number in range(6):

        async def then(world: World, number: int = number) -> None:
            await train(world, clocks, range(2 * number + 1, 2 * number + 3), 20.0)

        attempt(tmp_path, number, checkpoint, then)
        went.append(steps_in(tmp_path, kind))
    assert went[0] == []
    # The restored step 2, as nothing was there yet; 60 s later step 5; and so on.
    assert went[-1] == [2, 5, 8, 11]


def test_where_one_node_has_a_new_disk_what_is_restored_is_late(tmp_path: Path, clocks: Clocks) -> None:
    """Although the others had a step 20 s ago."""

    async def test() -> None:
        checkpoint = every(tmp_path, "nvme")
        async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
            await world.plan()
            await train(world, clocks, range(1, 4), 20.0)
        shutil.rmtree(tmp_path / "nvme" / "b")
        async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
            await world.plan()
            await world.await_saves()
        disk = NvmeTier(tmp_path / "nvme", NAMESPACE, node="b")
        assert [save.step for save in disk.steps()] == [3]

    run(test)


@pytest.mark.parametrize("jump_s", [-YEAR_S, -30.0, 30.0, YEAR_S])
def test_a_jump_of_the_walls_clock_in_an_attempt_changes_nothing(tmp_path: Path, clocks: Clocks, jump_s: float) -> None:
    async def then(world: World) -> None:
        await train(world, clocks, range(1, 5), 20.0)
        clocks.ahead_s += jump_s
        await train(world, clocks, range(5, 10), 20.0)

    attempt(tmp_path, 0, every(tmp_path, "shared"), then)
    assert steps_in(tmp_path, "shared") == [3, 6, 9]


@pytest.mark.parametrize(
    ("jump_s", "expected"),
    [
        (0.0, [3, 6, 9]),  # step 3 went 20 s before the restart
        (-YEAR_S, [3, 7]),  # its commit lies in the future: 60 s from the restart on
        (YEAR_S, [3, 4, 7]),  # and in a distant past: the restored step goes at once, and no other too soon
    ],
)
def test_a_jump_between_attempts_costs_at_most_one_interval_or_one_save(
    tmp_path: Path, clocks: Clocks, jump_s: float, expected: list[int]
) -> None:
    checkpoint = every(tmp_path, "shared")

    async def first(world: World) -> None:
        await train(world, clocks, range(1, 5), 20.0)

    async def second(world: World) -> None:
        await train(world, clocks, range(5, 10), 20.0)

    attempt(tmp_path, 0, checkpoint, first)
    clocks.ahead_s += jump_s
    attempt(tmp_path, 1, checkpoint, second)
    assert steps_in(tmp_path, "shared") == expected


def test_a_tier_that_cannot_be_read_is_counted_from_the_start_of_the_agents(
    tmp_path: Path, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = every(tmp_path, "shared")

    async def first(world: World) -> None:
        await train(world, clocks, range(1, 5), 20.0)

    attempt(tmp_path, 0, checkpoint, first)
    clocks.now_s += 3600
    catalog = SharedTier.catalog

    async def test() -> None:
        with monkeypatch.context() as away:
            away.setattr(SharedTier, "catalog", lambda tier: (_ for _ in ()).throw(OSError("away")))
            world = await World(tmp_path, ["a"], 1, checkpoint).__aenter__()
            assert (await world.plan())["step"] == 4
        assert SharedTier.catalog is catalog
        await train(world, clocks, range(5, 8), 20.0)
        await world.__aexit__()

    run(test)
    assert steps_in(tmp_path, "shared") == [3, 7]


def test_a_script_is_told_to_save_whatever_any_tier_needs(tmp_path: Path) -> None:
    """The trainer's part: steps alone decide what is saved; which of those go by the clock is the agents' part."""
    board = Board.create(tmp_path, attempt=0)
    cadence = Cadence(board, every_steps=(4, 6), rank=0, local_rank=0, attempt=0, gate_s=1.0)
    assert [step for step in range(1, 25) if cadence.should_save(step)] == [4, 6, 8, 12, 16, 18, 20, 24]
    assert not cadence.should_stop(24)
    cadence.close()
