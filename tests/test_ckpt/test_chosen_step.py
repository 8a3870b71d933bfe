"""A script loads a step that it chooses, from whichever tier has all of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent_kit import DEADLINES, LINE, NAMESPACE, RUN_ID, World, config, content, lose, run, save_id, until
from trainer_kit import Node, checkpointer, settle

from ckpt.agent.shards.memory_store import MemoryStore
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.line import NOBODY
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier
from ckpt.timeouts import WorkerDeadlines

NODES = ["a", "b"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(
        tmp_path, nvme={"path": str(tmp_path / "nvme"), "every_steps": 4, "keep": 9},
        shared={"path": str(tmp_path / "shared"), "every_steps": 2, "keep": 9},
    )  # fmt: skip
    yield node
    node.stop()


def saved(node: Node) -> None:
    """Steps 0 to 9: of memory's slots at least two hold a step, the disk has every fourth, the directory the even."""
    with node.start() as ckpt:
        for step in range(10):
            ckpt.save(step, {"x": np.full(1000, step), "n": step})
            settle(ckpt)


def test_a_step_comes_from_memory_the_nodes_disk_or_the_directory(node: Node) -> None:
    saved(node)
    with node.start() as ckpt:
        for step in (9, 8, 4, 2, 0):
            live: dict[str, Any] = {"x": np.zeros(1000, int), "n": -1}
            assert ckpt.load(live, step=step) == step
            assert live["n"] == step and (live["x"] == step).all()
        assert ckpt.newest_step == 9 and ckpt.load(live) == 9 and live["n"] == 9


@pytest.mark.parametrize("gone", ["nvme", "shared"])
def test_a_step_that_a_lost_tier_held_comes_from_the_other(node: Node, gone: str) -> None:
    saved(node)
    shutil.rmtree(node.ram_dir.parent / gone)
    with node.start() as ckpt:
        live: dict[str, Any] = {"x": np.zeros(1000, int), "n": -1}
        assert ckpt.load(live, step=4) == 4 and (live["x"] == 4).all()


def test_a_step_that_no_tier_has_is_an_error_and_the_state_stays(node: Node) -> None:
    saved(node)
    live: dict[str, Any] = {"x": np.zeros(1000, int), "n": -1}
    with node.start() as ckpt:
        with pytest.raises(CheckpointError, match=r"step 3 .*no node's memory or disk has all of it; it is not in .*"):
            ckpt.load(live, step=3)
        assert live["n"] == -1 and ckpt.load(live) == 9


def test_a_load_after_a_save_finds_what_this_run_has_committed(node: Node) -> None:
    live: dict[str, Any] = {"x": np.zeros(1000, int), "n": -1}
    with node.start() as ckpt:
        assert ckpt.newest_step is None and ckpt.load(live) is None
        ckpt.save(5, {"x": np.full(1000, 5), "n": 5})
        assert ckpt.load(live) == 5 and live["n"] == 5 and (live["x"] == 5).all()
    with node.start() as ckpt:
        assert ckpt.load(live) == 5
        for step in (7, 9, 11, 13):  # none goes to a lower tier, and the slots of step 5 are used again
            ckpt.save(step, {"x": np.full(1000, step), "n": step})
            settle(ckpt)
        assert ckpt.newest_step == 13 and ckpt.load(live) == 13 and (live["x"] == 13).all()
        assert ckpt.read().step == 13


def test_the_step_of_the_start_is_found_in_a_lower_tier_once_memory_has_lost_it(node: Node) -> None:
    live: dict[str, Any] = {"x": np.zeros(1000, int), "n": -1}
    with node.start() as ckpt:
        ckpt.save(8, {"x": np.full(1000, 8), "n": 8}, flush=True)
        settle(ckpt)
    shutil.rmtree(node.ram_dir.parent / "nvme")
    with node.start() as ckpt:
        assert ckpt.load(live) == 8
        for step in (9, 11, 13, 15):  # the slots of step 8 are used again
            ckpt.save(step, {"x": np.full(1000, step), "n": step})
            settle(ckpt)
        assert ckpt.load(live, step=8) == 8 and live["n"] == 8 and (live["x"] == 8).all()
        assert ckpt.load(live) == 15 and live["n"] == 15


def test_a_load_after_a_script_has_gone_back_finds_what_it_saved_since(node: Node) -> None:
    saved(node)
    live: dict[str, Any] = {"x": np.zeros(1000, int), "n": -1}
    with node.start() as ckpt:
        newest = ckpt.newest_step
        assert newest is not None and ckpt.load(live, step=2) == 2
        ckpt.save(3, {"x": np.full(1000, 33), "n": 33})
        assert newest > 3 == ckpt.newest_step
        assert ckpt.load(live) == 3 and live["n"] == 33
        settle(ckpt)
    with node.start() as ckpt:
        assert ckpt.load(live) == 3 and live["n"] == 33
        assert ckpt.load(live, step=8) == 8 and live["n"] == 8, "the steps that it has left stay"


def test_no_newest_step_is_given_while_a_save_has_no_outcome(tmp_path: Path) -> None:
    """Otherwise ranks could load different steps."""

    async def test() -> None:
        async with World(tmp_path, NODES, 0, config()) as world:
            ckpt = checkpointer(world.places[1], config(), rank=1, deadlines=WorkerDeadlines(saves_s=0.2))
            in_thread = asyncio.to_thread
            await in_thread(ckpt.save, 1, {"x": 1})
            with pytest.raises(AgentError, match=r"rank 1: no outcome of the last saves within 0\.2 s"):
                await in_thread(lambda: ckpt.newest_step)
            world.workers[0].save(1, 0)
            await world.workers[1].event("committed", step=1)
            assert await in_thread(lambda: ckpt.newest_step) == 1
            await in_thread(ckpt.close)

    run(test)


def test_every_node_reads_a_chosen_step_from_the_nodes_that_hold_it(tmp_path: Path) -> None:
    async def test() -> None:
        checkpoint = config(keep=3)
        async with World(tmp_path, NODES, 0, checkpoint) as world:
            for slot, step in enumerate((10, 20)):
                await world.save(step, slot)
        async with World(tmp_path, NODES[::-1], 1, checkpoint) as world:  # each rank runs where the other did
            assert (await world.plan())["step"] == 20
            for worker in world.workers:
                answer = await worker.request("choose", step=10)
                assert (answer["step"], answer["tier"], answer["world_size"]) == (10, "memory", 2)
                for rank in range(2):
                    assert (await worker.read(rank, step=10))[:5000] == content(rank, 10)
                    assert (await worker.read(rank))[:5000] == content(rank, 20)

    run(test)


def test_a_step_of_which_one_shard_is_lost_is_refused(tmp_path: Path) -> None:
    async def test() -> None:
        checkpoint = config(keep=3, scheme="none")
        async with World(tmp_path, NODES, 0, checkpoint) as world:
            for slot, step in enumerate((10, 20)):
                await world.save(step, slot)
        (tmp_path / "b" / "own-0-0.json").unlink()
        async with World(tmp_path, NODES, 1, checkpoint) as world:
            assert (await world.plan())["step"] == 20
            answers = [await worker.request("choose", step=10) for worker in world.workers]
            assert all("no node's memory or disk has all of it" in answer["error"] for answer in answers)
            assert (
                "not chosen before" in (await world.workers[0].request("open", step=10, rank=0, blocks=None))["error"]
            )

    run(test)


@pytest.mark.parametrize("saved_next", [25, 40])
def test_a_save_after_a_chosen_step_begins_a_line_and_the_steps_of_the_other_one_stay(
    tmp_path: Path, saved_next: int
) -> None:
    checkpoint = config(tmp_path / "shared", every_steps=5, nvme={"path": str(tmp_path / "nvme"), "every_steps": 5})
    shared = SharedTier(tmp_path / "shared", NAMESPACE)
    tiers = (shared, *(NvmeTier(tmp_path / "nvme", NAMESPACE, node=node) for node in NODES))
    back = LINE.fork(20, number=2, began_s=0.0, seed="back", owner=NOBODY)

    async def test() -> None:
        async with World(tmp_path, NODES, 0, checkpoint) as world:
            for slot, step in enumerate((20, 30)):
                await world.save(step, slot)
                await world.await_saves()
        async with World(tmp_path, NODES, 1, checkpoint) as world:
            plan = await world.plan()
            assert (plan["step"], plan["is_head"], plan["next_line"][0]) == (30, True, 2)
            for worker in world.workers:
                assert (await worker.request("choose", step=20))["step"] == 20
                worker.send(op="load_ended", step=20, seconds=0.5)
            for monitor in world.monitors:
                await monitor.event("loaded", step=20, tier="memory", newest=30)
            await world.save(saved_next, 0, line=back)
            await world.await_saves()
            await world.monitors[0].event("line", step=saved_next, origin=20, newest=30, line=back.id)
            kept = [(saved_next, back), (20, LINE), (30, LINE)]
            await until(lambda: all([(s.step, s.line) for s in tier.steps()] == kept for tier in tiers))
            memory = MemoryStore(tmp_path / "a", RUN_ID, NAMESPACE)
            memory.scan()
            held = {record.save for record in memory.shards().values()}
            assert held >= {save_id(30), save_id(saved_next, 1, back)}
        for attempt in (2, 3):
            async with World(tmp_path, NODES, attempt, checkpoint) as world:
                plan = await world.plan()
                assert plan["save"] == save_id(saved_next, 1, back).to_json()
                restored = await world.monitors[0].event("restore_plan", step=saved_next)
                assert restored["left"] == [f"{LINE} up to step 30: {back} is newer"] * (saved_next < 30)
                expected = [content(rank, saved_next) for rank in range(2)]
                assert [data[:5000] for data in await world.contents(2)] == expected
                assert (await world.workers[0].request("choose", step=20))["step"] == 20
            lose(tmp_path, *NODES)
        assert not any(tier.quarantined() for tier in tiers)

    run(test)


BACK = LINE.fork(10, number=2, began_s=0.0, seed="back", owner=NOBODY)
PATIENT = replace(DEADLINES, seal_s=600, protect_s=600)


@pytest.mark.parametrize("is_first", [False, True])
def test_a_rank_that_cannot_make_the_first_save_after_going_back_is_waited_for_by_no_other(
    tmp_path: Path, is_first: bool
) -> None:
    """The line before it has committed this step, or a later one."""

    async def test() -> None:
        async with World(tmp_path, NODES, 0, config(), deadlines=PATIENT) as world:
            for slot, step in enumerate((10, 20)):
                await world.save(step, slot)
            able, unable = world.workers
            if not is_first:
                able.save(15, 0, line=BACK)
                await until(lambda: world.has_sealed(0, 15))
            unable.send(op="drop_shard", step=15, rank=1, descent=BACK.to_json(), reason="no memory")
            await unable.event("dropped", step=15)
            if is_first:
                able.save(15, 0, line=BACK)
            assert (await able.event("dropped", step=15))["reason"].endswith(("no memory", "dropped already"))
            await world.save(20, 1, line=BACK)

    run(test)


def test_a_drop_of_the_line_that_was_left_drops_no_save_of_the_same_step_of_the_next_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, NODES, 0, config(), deadlines=PATIENT) as world:
            await world.save(10, 0)
            ahead, behind = world.workers
            ahead.save(20, 1, line=BACK)
            await until(lambda: world.has_sealed(0, 20))
            behind.send(op="drop_shard", step=20, rank=1, descent=LINE.to_json(), reason="no memory")
            reason = (await behind.event("dropped", step=20))["reason"]
            assert reason.startswith("rank 1: no memory")
            behind.save(20, 1, line=BACK)
            for worker in world.workers:
                await worker.event("committed", save=save_id(20, 0, BACK).to_json())
            assert not ahead.seen("dropped")

    run(test)


def test_of_two_saves_of_one_step_the_newest_lines_is_chosen(tmp_path: Path) -> None:
    checkpoint = config(tmp_path / "shared", every_steps=5, keep=3)
    back = LINE.fork(10, number=2, began_s=0.0, seed="back", owner=NOBODY)

    async def test() -> None:
        async with World(tmp_path, NODES, 0, checkpoint) as world:
            for slot, step in enumerate((10, 20)):
                await world.save(step, slot)
                await world.await_saves()
            await world.save(20, 2, line=back)
            await world.await_saves()
        lose(tmp_path, *NODES)
        async with World(tmp_path, NODES, 1, checkpoint) as world:
            assert (await world.plan())["save"] == save_id(20, 0, back).to_json()
            await world.save(30, 0, line=back)
            for step, line in ((20, back), (10, LINE)):
                assert (await world.workers[1].request("choose", step=step))["save"] == save_id(step, 0, line).to_json()

    run(test)
