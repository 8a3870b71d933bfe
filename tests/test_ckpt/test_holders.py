"""Nodes that leave: their agents serve what they hold, without a part in the new world, and nothing is lost."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_kit import World, config, content, copies, lose, run, until
from resize_kit import SCHEMES, load, needed_bytes, protected, save, traffic
from test_recover import damage, records
from test_s3_restore import memory, needs_root

from ckpt.agent.restore.handover import Handover
from ckpt.config import CheckpointConfig
from ckpt.format.checksums import BLOCK_BYTES

__all__ = ["memory"]  # a fixture

NODES = ["a", "b", "c", "d"]


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.INFO)
    yield


def over_shared(root: Path, scheme: str) -> CheckpointConfig:
    return config(root / "shared", every_steps=10_000, **SCHEMES[scheme])


async def saved(root: Path, checkpoint: CheckpointConfig, nodes: list[str] = NODES) -> None:
    """Step 10 is in the shared directory, step 20 in memory alone."""
    async with World(root, nodes, 0, checkpoint) as world:
        await world.plan()
        await save(world, 10, 0, flush=True)
        await world.await_saves()
        await save(world, 20, 1)


async def go_on(root: Path, nodes: list[str], attempt: int, checkpoint: CheckpointConfig) -> None:
    """The agents without holders, in the middle of the attempt."""
    async with World(root, nodes, attempt, checkpoint, generation=1) as world:
        answers = await asyncio.gather(*(w.request("rejoin", generation=0) for w in world.workers))
        assert {answer["step"] for answer in answers} == {20}


@pytest.mark.parametrize("stays", [["a", "b"], ["c"]], ids="".join)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_more_nodes_leave_than_the_scheme_covers_and_nothing_is_lost_nor_read_elsewhere(
    tmp_path: Path, scheme: str, stays: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As soon as workers have loaded the leaving nodes may go, and then as many as the scheme covers."""
    checkpoint = over_shared(tmp_path, scheme)
    leaves = [node for node in NODES if node not in stays]

    async def test() -> None:
        await saved(tmp_path, checkpoint)
        least = needed_bytes(tmp_path, stays, 4, 20)
        with pytest.MonkeyPatch.context() as patch:
            crossed = traffic(patch)
            async with World(tmp_path, stays, 1, checkpoint, holders=leaves) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"], plan["skipped"]) == (20, "memory", [])
                await load(world, 4, 20)
                await protected(caplog)
            assert not crossed.shared_reads
            assert 0 < crossed.load_bytes <= least  # copies made for redundancy serve the load as well
        lose(tmp_path, *leaves)
        await go_on(tmp_path, stays, 1, checkpoint)
        if len(stays) > 1 and scheme != "none":
            lose(tmp_path, stays[0])
        left = [node for node in stays if (tmp_path / node).exists()]
        async with World(tmp_path, left, 2, checkpoint) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"], plan["skipped"]) == (20, "memory", [])
            await load(world, 4, 20)

    run(test)


def test_a_holder_takes_no_part_in_saves_redundancy_flushes_and_stops(tmp_path: Path) -> None:
    checkpoint = config(tmp_path / "shared", every_steps=10)

    async def test() -> None:
        await saved(tmp_path, checkpoint)
        async with World(tmp_path, ["a", "b"], 1, checkpoint, holders=["c", "d"]) as world:
            await world.plan()
            before = {node: records(tmp_path / node) for node in "cd"}
            await save(world, 30, 0)
            await world.monitors[0].event("commit", tier="shared", step=30)
            assert {node: records(tmp_path / node) for node in "cd"} == before
            assert all(30 in copies(tmp_path / node) for node in "ab")
            (folder,) = (tmp_path / "shared" / "test").glob("step-*30*")
            assert len(list(folder.glob("node-*.data"))) == 2
            world.monitors[3].send(op="stop")  # by a leaving node's runner, that may have heard of it first
            for monitor in world.monitors[:2]:
                await monitor.event("stop_agreed")
            assert not world.monitors[2].seen("stop_agreed")

    run(test)


def test_redundancy_that_was_not_made_when_holders_left_is_made_by_the_agents_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = over_shared(tmp_path, "xor")

    async def test() -> None:
        await saved(tmp_path, checkpoint)
        async with World(tmp_path, ["a", "b"], 1, checkpoint, holders=["c", "d"]) as world:
            for agent in world.agents:
                agent._peers._handlers["protect_restored"] = lambda *_, **__: asyncio.Event().wait()
            await world.plan()
            await load(world, 4, 20)
        lose(tmp_path, "c", "d")
        await go_on(tmp_path, ["a", "b"], 1, checkpoint)
        lose(tmp_path, "b")
        async with World(tmp_path, ["a"], 2, checkpoint) as world:
            assert (await world.plan())["step"] == 20
            await load(world, 4, 20)

    run(test)


def test_an_older_step_of_as_many_ranks_is_not_taken_for_the_newest_when_holders_have_left(tmp_path: Path) -> None:
    """Two nodes saved step 10, four saved step 20 from it: two again must not give up step 20 for step 10."""

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
        async with World(tmp_path, NODES, 1, config()) as world:
            await world.plan()
            await world.save(20, 1)
        async with World(tmp_path, ["a", "b"], 2, config(), holders=["c", "d"]) as world:
            assert (await world.plan())["step"] == 20
        lose(tmp_path, "c", "d")
        await go_on(tmp_path, ["a", "b"], 2, config())
        async with World(tmp_path, ["a", "b"], 3, config()) as world:
            assert (await world.plan())["step"] == 20
            assert await world.contents(4) == [content(rank, 20) for rank in range(4)]

    run(test)


def test_what_was_taken_over_goes_with_the_first_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with World(tmp_path, NODES, 0, config(scheme="none")) as world:
            await world.save(20, 1)
        async with World(tmp_path, ["a", "b"], 1, config(scheme="none"), holders=["c", "d"]) as world:
            await world.plan()
            taken = sorted(path.name for path in tmp_path.glob("[ab]/copy-*.data"))
            assert taken == ["copy-1-2-0.data", "copy-1-3-0.data"]
            await protected(caplog)
            await world.save(30, 0)
            await until(lambda: not list(tmp_path.glob("[ab]/copy-*")))

    run(test)


def test_without_room_for_it_a_shard_stays_with_its_holder_which_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with World(tmp_path, NODES, 0, config(scheme="none")) as world:
            await world.save(20, 1)
        monkeypatch.setattr(Handover, "_fitting", lambda *_: [2])
        async with World(tmp_path, ["a", "b"], 1, config(scheme="none"), holders=["c", "d"]) as world:
            assert (await world.plan())["step"] == 20
            told = await world.monitors[1].event("problem", what="shard not taken over")
            assert told["detail"].startswith("rank 3: this node's memory has no room for it")
            assert await world.contents(4) == [content(rank, 20) for rank in range(4)]
            await world.save(30, 0)

    run(test)


@needs_root
@pytest.mark.parametrize(("memory", "taken"), [(6, 1), (7, 2), (8, 3)], indirect=["memory"])
@pytest.mark.usefixtures("memory")
def test_as_much_is_taken_over_as_leaves_room_for_the_load_and_the_first_save(tmp_path: Path, taken: int) -> None:
    """Four shards of a block each come to a node that has one of them; its next save has four blocks."""

    async def test() -> None:
        nodes, checkpoint = ["x", "b", "c", "d"], config(scheme="none")
        async with World(tmp_path, nodes, 0, checkpoint) as world:
            for worker in world.workers:
                worker.save(20, 0, content(worker.rank, 20, BLOCK_BYTES))
            await world.workers[0].event("committed", step=20)
        async with World(tmp_path, ["x"], 1, checkpoint, holders=nodes[1:]) as world:
            assert (await world.plan())["step"] == 20
            assert len(list((tmp_path / "x").glob("copy-*.json"))) == taken
            assert await world.contents(4) == [content(rank, 20, BLOCK_BYTES) for rank in range(4)]
            world.workers[0].send(op="load_ended")
            await until(
                lambda: shutil.disk_usage(tmp_path / "x").free >= 4 * BLOCK_BYTES
            )  # a mapping outlives its file's name
            world.workers[0].save(30, 1, bytes(4 * BLOCK_BYTES))
            await world.workers[0].event("committed", step=30)

    run(test)


def test_a_holders_damaged_shard_is_never_taken_over(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, NODES, 0, config()) as world:
            await world.save(10, 0)
            await world.save(20, 1)
        damage(tmp_path / "c" / "own-0-1.data")  # its copy is on d
        async with World(tmp_path, ["a", "b"], 1, config(), holders=["c", "d"]) as world:
            assert (await world.plan())["step"] == 20
        lose(tmp_path, "c", "d")
        async with World(tmp_path, ["a", "b"], 2, config()) as world:
            assert (await world.plan())["step"] == 20
            assert await world.contents(4) == [content(rank, 20) for rank in range(4)]

    run(test)


def test_in_a_world_of_the_same_size_new_nodes_take_over_their_ranks_from_the_nodes_that_leave(tmp_path: Path) -> None:
    """As where a booster comes while another goes."""

    async def test() -> None:
        async with World(tmp_path, NODES, 0, config(scheme="none")) as world:
            await world.save(20, 1)
        async with World(tmp_path, ["a", "b", "x", "y"], 1, config(scheme="none"), holders=["c", "d"]) as world:
            assert (await world.plan())["tier"] == "memory"
        lose(tmp_path, "c", "d")
        async with World(tmp_path, ["a", "b", "x", "y"], 1, config(scheme="none"), generation=1) as world:
            answers = await asyncio.gather(*(w.request("rejoin", generation=0) for w in world.workers))
            assert {answer["step"] for answer in answers} == {20}
        async with World(tmp_path, ["a", "b", "x", "y"], 2, config(scheme="none")) as world:
            assert (await world.plan())["step"] == 20
            assert await world.contents(4) == [content(rank, 20) for rank in range(4)]

    run(test)


# a larger world


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_nodes_become_four_from_memory_alone_and_each_byte_crosses_the_wire_once(
    tmp_path: Path, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        checkpoint = over_shared(tmp_path, scheme)
        await saved(tmp_path, checkpoint, NODES[:2])
        await resized(tmp_path, checkpoint, 1, NODES, 2, 20)

    run(test)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_four_nodes_become_three_then_six(tmp_path: Path, scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        checkpoint = over_shared(tmp_path, scheme)
        await saved(tmp_path, checkpoint)
        await resized(tmp_path, checkpoint, 1, NODES[:3], 4, 20, holders=["d"], then_save=30)
        lose(tmp_path, "d")
        await resized(tmp_path, checkpoint, 2, ["a", "x", "b", "y", "c", "z"], 3, 30, then_save=40)
        async with World(tmp_path, ["a", "x", "b", "y", "c", "z"], 3, checkpoint) as world:
            assert (await world.plan())["step"] == 40
            await load(world, 6, 40)

    run(test)


async def resized(
    root: Path, checkpoint: CheckpointConfig, attempt: int, nodes: list[str], was: int, step: int,
    then_save: int = 0, **more: Any,
) -> None:  # fmt: skip
    """A world of another size loads a step; nothing is read below memory, and no byte comes twice."""
    for node in nodes:
        (root / node).mkdir(mode=0o700, exist_ok=True)
    least = needed_bytes(root, nodes, was, step)
    with pytest.MonkeyPatch.context() as patch:
        crossed = traffic(patch)
        async with World(root, nodes, attempt, checkpoint, **more) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"], plan["world_size"]) == (step, "memory", was)
            await load(world, was, step)
            assert not crossed.shared_reads
            print(f"{was} -> {len(nodes)} nodes: {crossed.load_bytes} bytes crossed, {least} had to")
            assert 0 < crossed.load_bytes <= least  # copies made for redundancy serve the load as well
            if then_save:
                await save(world, then_save, 0)
