"""`every_steps: auto`: what the leader computes, that all ranks save the same steps, and that a stop still agrees."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from agent_kit import World, config, run, save_id, until
from trainer_kit import Node, settle

from ckpt.agent.cadence import CadenceLeader
from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError
from ckpt.memory.board import Board
from ckpt.sections import AUTO_FROM
from ckpt.worker.boundaries import Cadence

AUTO = {"namespace": "ns", "memory": {"every_steps": "auto"}, "shared": {"path": "/x", "every_steps": "auto"}}


def leader(*, world_size: int = 16_384, attempt: int = 0, **section: Any) -> tuple[CadenceLeader, list[Any], list[Any]]:
    """A leader without agents: what it has the ranks agree on, and what it reports."""
    agreed: list[Any] = []
    told: list[Any] = []
    now_s = [0.0]

    async def save_every(steps: int, before: int) -> bool:
        agreed.append((before, steps))
        return True

    place = SimpleNamespace(world_size=world_size, attempt=attempt, generation=0, run_id="run")
    context: Any = SimpleNamespace(
        place=place, config=CheckpointConfig.from_mapping({**AUTO, **section}), deadlines=None, exchange=None,
        peers=SimpleNamespace(serve=lambda part: None), memory_store=None, node_disk=None,
        listener=SimpleNamespace(to_monitors=lambda event, **fields: told.append((event, fields))),
    )  # fmt: skip
    stop: Any = SimpleNamespace(save_every=save_every)
    found = CadenceLeader(context, stop, lambda: None, clock=lambda: now_s[0])
    found.now_s = now_s  # type: ignore[attr-defined]
    return found, agreed, told


async def train(of: CadenceLeader, saves: range, *, step_s: float, stall_s: float, every: int) -> None:
    """Commits, with the agreement that each may bring about."""
    for save in saves:
        of.now_s[0] += every * step_s + stall_s  # type: ignore[attr-defined]
        of.committed(save_id(save * every), 1.0, stall_s)
        for _ in range(3):
            await asyncio.sleep(0)


def test_it_agrees_on_what_loses_least_once_it_has_measured_and_then_on_real_changes_alone() -> None:
    async def test() -> None:
        of, agreed, told = leader()
        task = asyncio.ensure_future(of.run())
        await train(of, range(1, 4), step_s=5.0, stall_s=1.0, every=10)
        assert agreed == [], "two measurements are too few"
        await train(of, range(4, 30), step_s=5.0, stall_s=1.0, every=10)
        ((before, steps),) = agreed
        assert before == AUTO_FROM and 20 < steps < 40, "about 150 s, for a failure in three hours"
        ((event, fields),) = told
        assert event == "cadence" and fields["every_steps"] == steps and fields["step_s"] == pytest.approx(5.0)
        await train(of, range(100, 130), step_s=5.0, stall_s=9.0, every=30)
        assert len(agreed) == 2 and agreed[1][0] == steps and agreed[1][1] > 2 * steps
        task.cancel()

    asyncio.run(test())


def test_a_run_that_fails_often_saves_more_often() -> None:
    steps = []
    for attempt in (0, 30):
        of, _, _ = leader(world_size=8, attempt=attempt)
        of.now_s[0] = 3600.0  # type: ignore[attr-defined]
        asyncio.run(train(of, range(1, 9), step_s=1.0, stall_s=1.0, every=10))
        steps.append(of._best_steps())
    assert steps[0] > 4 * steps[1]


def test_a_lower_tier_takes_a_save_at_once_and_then_no_more_often_than_its_flush_allows() -> None:
    of, _, told = leader()
    assert of.tier_every_s("shared") == 0.0
    of.flushed("shared", 60.0)
    every_s = of.tier_every_s("shared")
    assert 60 * 1.25 <= every_s < 3600 and told == [("cadence", told[0][1])] and told[0][1]["tier"] == "shared"
    of.flushed("shared", 61.0)
    of.tier_every_s("shared")
    assert len(told) == 1, "a small change is not told"


@pytest.mark.parametrize("section", [{"every_steps": 0}, {"every_steps": "often"}, {"every_steps": -5}])
def test_what_is_neither_a_number_of_steps_nor_auto_is_refused(section: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"memory\.every_steps: got [^;]*, expected a whole number of at least 1, or auto$"
    ):
        CheckpointConfig.from_mapping({"namespace": "ns", "memory": section})


def rank(path: Path, local_rank: int) -> Cadence:
    return Cadence(
        Board.open(path), every_steps=[1000], rank=local_rank, local_rank=local_rank, attempt=0, gate_s=20,
        auto_from=AUTO_FROM,
    )  # fmt: skip


def test_a_rank_that_lags_behind_the_change_saves_the_same_steps(tmp_path: Path) -> None:
    board = Board.create(tmp_path, attempt=0)
    ranks = [rank(tmp_path, 0), rank(tmp_path, 1)]
    saved: list[list[int]] = [[], []]

    def step(at: int, number: int) -> None:
        if ranks[at].should_save(number):
            saved[at].append(number)

    for number in range(1, 16):
        step(0, number)
    for number in range(1, 15):
        step(1, number)
    board.set_every_steps(4, before=AUTO_FROM, boundary=1 + board.boundary())  # 16
    for at, first in ((0, 16), (1, 15)):
        for number in range(first, 31):
            step(at, number)
    assert saved == [[10, 16, 20, 24, 28]] * 2
    board.set_every_steps(9, before=4, boundary=1 + board.boundary())
    for number in range(31, 40):
        step(0, number)
    assert saved[0][-1] == 36
    Board.create(tmp_path, attempt=1)
    assert Board.open(tmp_path).every_steps(5) == 0, "another attempt begins anew"


def test_all_nodes_agree_on_a_boundary_that_no_worker_has_passed_and_on_a_stop_after_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            boards = [Board.open(place.ram_dir) for place in world.places]
            for at, board in enumerate(boards):
                board.write_row(0, rank=at, attempt=0, boundary=7 + at, step=7 + at)
            stop = world.agents[0]._stop
            agreeing = [asyncio.ensure_future(stop.save_every(3, 10)), asyncio.ensure_future(stop._on_ask_stop(0))]
            await asyncio.gather(*agreeing)
            await until(lambda: all(board.stop_at for board in boards))
            assert [[board.every_steps(at) for at in (8, 9)] for board in boards] == [[10, 3]] * 2
            assert [(board.stop_at, board.gate) for board in boards] == [(9, 0)] * 2
            assert await stop.save_every(5, 3) is False, "all ranks stop"

    run(test)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    section = {"path": str(tmp_path / "shared"), "every_steps": "auto", "keep": 9, "keep_every_steps": 30}
    node = Node(tmp_path, memory={"every_steps": "auto", "keep": 2}, shared=section)
    yield node
    node.stop()


def test_a_script_with_auto_saves_and_its_milestones_reach_the_tier(node: Node) -> None:
    with node.start() as ckpt:
        for step in range(1, 35):
            if ckpt.should_save(step):
                ckpt.save(step, {"x": np.full(10, step)})
                settle(ckpt)
        assert not ckpt.failed_saves and ckpt.newest_step == 30
    stored = [path.name[5:15] for path in (node.shared / "ns").glob("step-*")]
    assert {int(name) for name in stored} >= {10, 30}, "the first save, which is measured, and the milestone"
