"""Agents are lost in mid-attempt and others take their place: training goes on, and soon so does saving."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import waiting
from agent_kit import LINE, World, config, content, copies, lose, run, until
from trainer_kit import FAST, Node, settle

from ckpt.agent.shards.held import HeldShard, ShardKind, whole_in_place
from ckpt.config import Place
from ckpt.errors import AgentError
from ckpt.format.line import FIRST
from ckpt.format.shard_record import SaveId
from ckpt.memory.board import Board


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def test_a_run_whose_agent_is_replaced_saves_again_and_loads_what_it_saved_then(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"x": np.zeros(1000)}
    with node.start(deadlines=replace(FAST, slot_s=3600)) as ckpt:  # a save that waited for a slot would never end
        ckpt.save(1, state)
        settle(ckpt)
        node.stop()
        for step in range(2, 6):
            assert ckpt.should_save(step)
            ckpt.save(step, state)
        assert ckpt.failed_saves == 4
        assert caplog.text.count("saving stops") == 1 and "is dropped" not in caplog.text
        node.start_agent(generation=1)
        step = 6
        waiting.until(lambda: "saving goes on" in caplog.text, "the new agent")
        assert "4 saves were dropped" in caplog.text
        state["x"][:] = 7
        ckpt.save(step, state)
        settle(ckpt)
        assert ckpt.failed_saves == 4
    again = {"x": np.zeros(1000)}
    with node.start() as ckpt:
        assert ckpt.load(again) == 6
    assert (again["x"] == 7).all()


def test_a_worker_that_has_not_loaded_yet_is_refused_by_agents_that_restore_nobody(node: Node) -> None:
    """What it would be given may be newer than what the others have gone on from."""
    with node.start() as first:
        first.save(1, {"x": np.zeros(1)})
        settle(first)
        node.start_agent(generation=1)
        late = node.checkpointer()
        with pytest.raises(AgentError, match="lost and replaced before this worker had loaded"):
            late.load({"x": np.zeros(1)})


def test_what_was_sealed_everywhere_is_kept_protected_and_outlives_a_node(tmp_path: Path) -> None:
    """Its copies had not been made when the agents went."""

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.plan()
            await world.save(10, slot=0)
            await world.stop_before_protect(20, slot=1)
            await world.kill()
            async with World(tmp_path, ["a", "b"], 0, config(), generation=1) as renewed:
                answers = await asyncio.gather(*(w.request("rejoin", generation=0) for w in renewed.workers))
                assert [answer["step"] for answer in answers] == [20, 20]
                told = await renewed.monitors[0].event("rejoined")
                assert (told["step"], told["generation"]) == (20, 1)
        lose(tmp_path, "b")
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            assert (await world.plan())["step"] == 20
            assert await world.contents(2) == [content(rank, 20) for rank in range(2)]

    run(test)


def test_a_save_that_one_rank_never_sealed_is_passed_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.plan()
            await world.save(10, slot=0)
            world.workers[0].save(20, slot=1)
            await until(lambda: world.has_sealed(0, 20))
            await world.kill()
            async with World(tmp_path, ["a", "b"], 0, config(), generation=1) as renewed:
                answers = await asyncio.gather(*(w.request("rejoin", generation=0) for w in renewed.workers))
                assert [answer["step"] for answer in answers] == [10, 10]
                await renewed.save(30, slot=1)
        lose(tmp_path, "a")
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            assert (await world.plan())["step"] == 30

    run(test)


def test_a_worker_that_lost_only_its_connection_is_not_let_in_as_if_the_agents_were_others(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a"], 0, config(), generation=2) as world:
            answer = await world.workers[0].request("rejoin", generation=2)
            assert "lost generation 2" in answer["error"]

    run(test)


def test_a_stop_that_one_node_alone_had_heard_of_holds_for_all_afterwards(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.plan()
            await world.kill()
        boards = [Board.open(tmp_path / name) for name in ("a", "b")]
        boards[0].set_stop(7)
        boards[1].set_gate(1)
        boards[1].write_row(0, rank=1, attempt=0, boundary=5, step=5)
        async with World(tmp_path, ["a", "b"], 0, config(), generation=1) as world:
            await world.monitors[0].event("rejoined")
            await until(lambda: boards[1].stop_at == 7)
            assert boards[1].gate == 0 and boards[1].boundary() == 5  # rows are the workers' and stay
            await world.monitors[1].event("stop_agreed", boundary=7)

    run(test)


def test_a_gate_that_the_lost_agents_left_up_is_lowered(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.plan()
            await world.kill()
        board = Board.open(tmp_path / "b")
        board.set_gate(1)
        async with World(tmp_path, ["a", "b"], 0, config(), generation=1):
            await until(lambda: board.gate == 0)

    run(test)


def test_only_saves_whole_where_their_ranks_run_count_this_attempts_before_older_ones(tmp_path: Path) -> None:
    place = Place(run_id="r", attempt=1, node="a", nodes=("a", "b"), ranks_per_node=1, ram_dir=tmp_path)

    def shard(step: int, rank: int, attempt: int = 1, world_size: int = 2, own: bool = True) -> HeldShard:
        save = SaveId(step=step, attempt=attempt, run_id="r", line=FIRST)
        return HeldShard(save, world_size, rank, ShardKind.OWN if own else ShardKind.COPY)

    a = [shard(10, 0), shard(20, 0), shard(40, 0), shard(90, 0, attempt=0), shard(99, 0, world_size=1), shard(50, 1)]
    a.append(shard(95, 0, world_size=3))
    b = [shard(10, 1), shard(20, 1), shard(40, 1, own=False), shard(90, 1, attempt=0), shard(50, 0)]
    b.append(shard(95, 1, world_size=3))  # its third rank's node is gone
    assert [(save.attempt, save.step) for save in whole_in_place([a, b], place)] == [(1, 20), (1, 10), (0, 90)]


def test_what_another_world_has_saved_is_not_replaced_before_the_next_commit(tmp_path: Path) -> None:
    """It was restored from, but no rank has its own shard of it; and copies of saves that fail take up room."""

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.plan()
            await world.save(10, slot=0)
        async with World(tmp_path, ["a", "b"], 1, config(), ranks_per_node=2, generation=1) as world:
            answers = [await worker.request("rejoin", generation=0) for worker in world.workers]
            assert {answer["step"] for answer in answers} == {10}
            await world.save_unheard(20, 30, slot=1)
            assert 10 in copies(tmp_path / "a")

    run(test)


@pytest.mark.parametrize("told_first", [False, True])
def test_a_missed_save_does_not_hold_up_the_ranks_that_made_it(tmp_path: Path, told_first: bool) -> None:
    """Rank 0 has saved steps that rank 1 misses: once rank 1 is back and says so, nobody waits for them."""

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config(), generation=1) as world:
            first, second = world.workers
            await asyncio.gather(*(worker.request("rejoin", generation=0) for worker in world.workers))
            if told_first:
                await second.request("drop_up_to", step=20, rank=1, descent=LINE.to_json())
            first.save(10, slot=0)
            first.save(20, slot=1)
            if not told_first:
                second.send(op="drop_up_to", step=20, rank=1, descent=LINE.to_json())
            await first.event("dropped", step=10)
            await first.event("dropped", step=20)
            await world.save(30, slot=0)

    run(test)
