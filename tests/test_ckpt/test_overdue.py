"""Agents are lost while a save is on its way to a lower tier: what is restored goes there in its stead."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent_kit import NAMESPACE, World, config, content, lose, run, until
from test_recover import damage
from trainer_kit import LIMIT_S, Node, settle

from ckpt.config import CheckpointConfig
from ckpt.format.manifest import NAME
from ckpt.format.shard_record import read_record
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier

NODES = ["a", "b"]


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[Any, ...]]]:
    """The first write of step 10, on each node and to each tier, never ends; yields those that have begun."""
    release = threading.Event()
    write_node = SharedTier.write_node
    seen: set[tuple[Any, ...]] = set()

    def write(self: SharedTier, save: Any, node_rank: int, shards: Any) -> Any:
        at = (self.where, save, node_rank)
        if save.step == 10 and at not in seen:
            seen.add(at)
            release.wait(30)
            raise OSError("lost")
        return write_node(self, save, node_rank, shards)

    monkeypatch.setattr(SharedTier, "write_node", write)
    yield seen
    release.set()


def steps_in(tmp_path: Path) -> list[int]:
    return [save.step for save in SharedTier(tmp_path / "shared", NAMESPACE).steps()]


@pytest.mark.parametrize("newest", [10, 15])
def test_the_next_attempt_flushes_what_it_restores_and_keeps_it_meanwhile(
    tmp_path: Path, stuck: set[Any], newest: int
) -> None:
    """Be it the very step that was due, or one after it that memory has and the tier lacks."""

    async def test() -> None:
        nvme = {"path": str(tmp_path / "nvme"), "every_steps": 10}
        checkpoint = config(tmp_path / "shared", nvme=nvme)
        async with World(tmp_path, NODES, 0, checkpoint) as world:
            await world.plan()
            await world.save(10, slot=0)
            if newest > 10:
                await world.save(newest, slot=1)
            await until(lambda: len(stuck) == len(("shared", "nvme")) * len(NODES))
        assert steps_in(tmp_path) == []
        async with World(tmp_path, NODES, 1, checkpoint) as world:
            plan = await world.plan()
            assert plan["step"] == newest
            for worker in world.workers:
                for tier in ("shared", "nvme"):
                    await worker.event("flushed", step=newest, tier=tier)
            await world.await_saves()
            assert steps_in(tmp_path) == [newest]
            for name in NODES:
                assert [save.step for save in NvmeTier(tmp_path / "nvme", NAMESPACE, node=name).steps()] == [newest]
            assert not world.monitors[0].seen("problem")
            await world.save(20, slot=2)
            await world.await_saves()
            assert steps_in(tmp_path) == [20, newest]

    run(test)


def test_other_agents_in_the_place_of_lost_ones_flush_what_they_take_up(tmp_path: Path, stuck: set[Any]) -> None:
    async def test() -> None:
        checkpoint = config(tmp_path / "shared")
        async with World(tmp_path, NODES, 0, checkpoint) as world:
            await world.plan()
            await world.save(10, slot=0)
            await until(lambda: len(stuck) == len(NODES))
        async with World(tmp_path, NODES, 0, checkpoint, generation=1) as world:
            for worker in world.workers:
                assert (await worker.request("rejoin", generation=0))["step"] == 10
                await worker.event("flushed", step=10, tier="shared")
            assert steps_in(tmp_path) == [10]
        lose(tmp_path, *NODES)
        async with World(tmp_path, NODES, 1, checkpoint) as world:
            assert (await world.plan())["tier"] == "shared"
            assert await world.contents(2) == [content(rank, 10) for rank in range(2)]

    run(test)


def test_nodes_that_have_changed_places_flush_the_copies_that_they_have_and_keep_them_meanwhile(
    tmp_path: Path, stuck: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its new rank's shard as its partner's copy alone; newer steps are committed before that is written."""
    write_node, go = SharedTier.write_node, threading.Event()

    def late(self: SharedTier, save: Any, *args: Any) -> Any:
        if save.attempt == 0 and len(stuck) == len(NODES):
            go.wait(30)
        return write_node(self, save, *args)

    async def test() -> None:
        checkpoint = config(tmp_path / "shared")
        async with World(tmp_path, NODES, 0, checkpoint) as world:
            await world.plan()
            await world.save(10, slot=0)
            await until(lambda: len(stuck) == len(NODES))
        monkeypatch.setattr(SharedTier, "write_node", late)
        async with World(tmp_path, NODES[::-1], 1, checkpoint) as world:
            assert (await world.plan())["pinned"]
            for step, slot in ((11, 1), (12, 2), (13, 1)):
                await world.save(step, slot)
            go.set()
            await world.await_saves()
            assert not world.monitors[0].seen("problem")
        lose(tmp_path, *NODES)
        async with World(tmp_path, NODES, 2, checkpoint) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (10, "shared")
            assert await world.contents(2) == [content(rank, 10) for rank in range(2)]

    try:
        run(test)
    finally:
        go.set()


def on_disk(tmp_path: Path, node: str) -> list[int]:
    return [save.step for save in NvmeTier(tmp_path / "nvme", NAMESPACE, node=node).steps()]


async def on_every_disk(tmp_path: Path, checkpoint: CheckpointConfig) -> None:
    """Step 10 is on the nodes' disks, and in the shared directory if there is one."""
    async with World(tmp_path, NODES, 0, checkpoint) as world:
        await world.plan()
        await world.save(10, slot=0)
        await world.await_saves()


@pytest.mark.parametrize("lost", [[], ["a"], ["b"]])
def test_a_node_whose_disk_has_the_restored_step_does_not_keep_the_others_from_writing_it(
    tmp_path: Path, lost: list[str]
) -> None:
    """A flush was cut short on one node, or a disk replaced: what is there stays as it is, the rest comes to it."""

    async def test() -> None:
        checkpoint = config(tmp_path / "shared", nvme={"path": str(tmp_path / "nvme"), "every_steps": 10})
        await on_every_disk(tmp_path, checkpoint)
        lose(tmp_path, *lost)
        shutil.rmtree(tmp_path / "nvme" / "b")
        (manifest,) = (tmp_path / "nvme" / "a").rglob(NAME)
        before = manifest.stat().st_ino, manifest.stat().st_mtime_ns
        async with World(tmp_path, NODES, 1, checkpoint) as world:
            assert (await world.plan())["step"] == 10
            await world.monitors[0].event("commit", tier="nvme", step=10)
            assert not any(monitor.seen("problem") for monitor in world.monitors)
        assert [on_disk(tmp_path, node) for node in NODES] == [[10], [10]]
        assert (manifest.stat().st_ino, manifest.stat().st_mtime_ns) == before
        lose(tmp_path, *NODES)
        shutil.rmtree(tmp_path / "shared")
        async with World(tmp_path, NODES, 2, checkpoint) as world:
            assert (await world.plan())["tier"] == "nvme"
            assert await world.contents(2) == [content(rank, 10) for rank in range(2)]

    run(test)


def test_a_part_on_disk_that_is_bad_or_of_other_ranks_does_not_count_as_written(tmp_path: Path) -> None:
    async def test() -> None:
        for node, order, reason in (("b", ["b", "a"], "without rank 0"), ("a", NODES, "does not match its checksum")):
            root = tmp_path / node
            root.mkdir()
            checkpoint = config(scheme="none", nvme={"path": str(root / "nvme"), "every_steps": 10})
            await on_every_disk(root, checkpoint)
            shutil.rmtree(root / "nvme" / ("a" if node == "b" else "b"))
            if node == "a":
                (data,) = (root / "nvme" / "a").rglob("*.data")
                damage(data)
            async with World(root, order, 1, checkpoint) as world:
                assert (await world.plan())["step"] == 10
                problem = await world.monitors[0].event("problem", what="flush to the nvme tier failed")
                assert reason in problem["detail"]
                await world.await_saves()

    run(test)


def test_nodes_that_have_changed_places_have_the_step_on_their_disks_all_the_same(tmp_path: Path) -> None:
    async def test() -> None:
        checkpoint = config(scheme="none", nvme={"path": str(tmp_path / "nvme"), "every_steps": 10})
        await on_every_disk(tmp_path, checkpoint)
        async with World(tmp_path, NODES[::-1], 1, checkpoint) as world:
            plan = await world.plan()
            assert plan["step"] == 10 and not plan["pinned"]

    run(test)


def test_what_the_tiers_have_or_was_never_due_there_is_not_flushed(tmp_path: Path) -> None:
    async def test() -> None:
        checkpoint = config(tmp_path / "shared")
        for attempt, (step, slot) in enumerate([(5, 0), (10, 1), (15, 0), (19, 1)]):
            async with World(tmp_path, NODES, attempt, checkpoint) as world:
                plan = await world.plan()
                assert not plan["pinned"]
                await world.save(step, slot)
                await world.await_saves()
                flushed = [event["step"] for event in world.workers[0].seen("flushed")]
                assert flushed == ([10] if step == 10 else [])
                assert steps_in(tmp_path) == ([10] if step >= 10 else [])

    run(test)


def test_a_step_that_is_still_flushed_is_saved_again_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script may save the step again that it has gone on from."""
    release = threading.Event()
    write_node = SharedTier.write_node

    def wait(self: SharedTier, *args: Any) -> Any:
        release.wait(30)
        return write_node(self, *args)

    monkeypatch.setattr(SharedTier, "write_node", wait)

    async def test() -> None:
        async with World(tmp_path, NODES, 0, config()) as world:
            await world.plan()
            await world.save(10, slot=0)
        async with World(tmp_path, NODES, 1, config(tmp_path / "shared")) as world:
            assert (await world.plan())["pinned"]
            await world.save(10, slot=1)
            await world.monitors[0].event("problem", what="not flushed to the shared tier", step=10)
            release.set()
            await world.await_saves()
            assert [save.attempt for save in SharedTier(tmp_path / "shared", NAMESPACE).steps()] == [0]
            assert {0, 1} == {read_record(tmp_path / "a", f"own-0-{slot}").save.attempt for slot in range(2)}

    try:
        run(test)
    finally:
        release.set()


def test_a_killed_agent_whose_flush_was_slow_is_followed_by_one_that_ends_it(tmp_path: Path) -> None:
    """Real processes: the step reaches the directory although no later one is due there."""
    node = Node(tmp_path)
    shared = SharedTier(node.shared, "ns")
    shared.path.mkdir()
    node.section["shared"] = {"path": str(node.shared), "every_steps": 10, "rate_limit_bytes_s": 1 << 20}
    state = {"x": np.arange(1 << 22, dtype=np.float64)}  # 32 MiB
    try:
        ckpt = node.start()
        ckpt.save(10, state)
        deadline = time.monotonic() + LIMIT_S
        while not list(shared.folder.glob("step-*/.node-*.tmp")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        node.stop()
        ckpt.close()
        assert shared.steps() == []
        del node.section["shared"]["rate_limit_bytes_s"]
        again = {"x": np.zeros(1 << 22)}
        with node.start() as ckpt:
            assert ckpt.load(again) == 10
            for step in (11, 12, 13):
                ckpt.save(step, again)
            settle(ckpt)
            assert [save.step for save in shared.steps()] == [10]
        assert (again["x"] == state["x"]).all()
    finally:
        node.stop()
