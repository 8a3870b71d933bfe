"""SIGKILL of every process at every stage of a save, a flush and a rebuild: the next start always recovers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agent_kit import NAMESPACE, World, config, content, lose, run, until

from ckpt.tiers.posix import SharedTier

NODES = ["a", "b", "c"]
WHILE_SAVING = {  # the steps that may be found afterwards
    "first shard sealed": {10},
    "first record written": {10},
    "before a copy verifies": {20},
    "before a copy's record": {20},
    "before a copy's record is renamed": {20},
    "after a copy's record": {20},
    "first commit heard": {20},
    "before a node's file": {20},
    "after a node's file": {20},
    "before the manifest": {20},
    "before the manifest is renamed": {20},
    "after the manifest": {20},
}
WHILE_TIDYING = {
    "before a superfluous step is renamed": {20},
    "after a superfluous step is renamed": {20},
    "before its directory is removed": {20},
    "before a claim is renamed": {10, 20},  # that goes on beside the save
    "after a claim is renamed": {10, 20},
}
WHILE_REBUILDING = [
    "before a rebuilt shard verifies",
    "before a rebuilt shard's record",
    "after a rebuilt shard's record",
    "before a copy is made again",
]

WHILE_MAKING_PARITY = [
    "first sum of parity",
    "last sum of parity",
    "before parity's record",
    "before parity's record is renamed",
    "after parity's record",
    "after all parity",
    "first commit heard",
]
WHILE_REBUILDING_FROM_PARITY = [
    "first sum of a lost shard",
    "last sum of a lost shard",
    "before a rebuilt shard's record",
    "after a rebuilt shard's record",
    "before parity is made again",
    "first sum of parity",
    "before parity's record",
    "after parity's record",
]


def die_at(root: Path, attempt: int, stage: str, scheme: str = "partner") -> None:
    driver = Path(__file__).with_name("kill_driver.py")
    done = subprocess.run(
        [sys.executable, str(driver), str(root), str(attempt), stage, scheme],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


@pytest.mark.parametrize("stage", WHILE_SAVING)
def test_killed_while_saving(tmp_path, stage):
    die_at(tmp_path, 0, stage)

    async def test():
        async with World(tmp_path, NODES, 1, config(tmp_path / "shared")) as world:
            plan = await world.plan()
            assert plan["step"] in WHILE_SAVING[stage]
            assert await world.contents(3) == [content(rank, plan["step"]) for rank in range(3)]
            await world.save(30, 2)
            await world.save(40, 0, flush=True)
            await world.await_saves()

    run(test)


@pytest.mark.parametrize("stage", WHILE_SAVING)
def test_killed_while_saving_and_a_node_lost_with_it(tmp_path, stage):
    """Step 10 has committed: it survives the loss of a node, whatever became of step 20."""
    die_at(tmp_path, 0, stage)
    lose(tmp_path, "b")

    async def test():
        async with World(tmp_path, ["a", "x", "c"], 1, config()) as world:
            plan = await world.plan()
            assert plan["step"] in (10, 20)
            assert await world.contents(3) == [content(rank, plan["step"]) for rank in range(3)]

    run(test)


@pytest.mark.parametrize("stage", WHILE_TIDYING)
def test_killed_while_tidying_the_shared_tier_and_all_memory_lost(tmp_path, stage):
    die_at(tmp_path, 0, stage)
    lose(tmp_path, *NODES)
    tier = SharedTier(tmp_path / "shared", NAMESPACE)

    async def test():
        async with World(tmp_path, NODES, 1, config(tmp_path / "shared")) as world:
            plan = await world.plan()
            assert plan["step"] in WHILE_TIDYING[stage] and plan["tier"] == "shared"
            assert await world.contents(3) == [content(rank, plan["step"]) for rank in range(3)]
            await world.save(30, 2)
            await world.await_saves()
            await world.save(40, 0, flush=True)
            await world.await_saves()
            await until(lambda: [save.step for save in tier.steps()] == [40, 30])
            await until(lambda: not list(tier.folder.glob(".trash-*")))
            assert tier.read_claim().attempt == 1

    run(test)


def test_killed_while_rebuilding_again_and_again(tmp_path):
    """Each attempt brings a new node in place of b, and dies at another stage of its rebuild."""

    async def save():
        async with World(tmp_path, NODES, 0, config(tmp_path / "shared")) as world:
            await world.save(10, 0)
            await world.save(20, 1)
            await world.await_saves()

    run(save)
    lose(tmp_path, "b")
    for attempt, stage in enumerate(WHILE_REBUILDING, start=1):
        die_at(tmp_path, attempt, stage)
        lose(tmp_path, f"spare-{attempt}")

    async def recover():
        async with World(tmp_path, ["a", "x", "c"], 9, config(tmp_path / "shared")) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (20, "memory")
            assert await world.contents(3) == [content(rank, 20) for rank in range(3)]
            await until(lambda: list((tmp_path / "x").glob("copy-0-0-*.json")))

    run(recover)


@pytest.mark.parametrize("stage", WHILE_MAKING_PARITY)
@pytest.mark.parametrize("lost", [None, "a", "b", "c"])
def test_killed_while_making_parity(tmp_path, stage, lost):
    """All nodes have sealed step 20; with a node lost at the same time, step 10 and its parity are still there."""
    die_at(tmp_path, 0, stage, "xor")
    if lost:
        lose(tmp_path, lost)

    async def test():
        nodes = [f"spare-{node}" if node == lost else node for node in NODES]
        async with World(tmp_path, nodes, 1, config(tmp_path / "none", scheme="xor")) as world:
            plan = await world.plan()
            assert plan["step"] in ((10, 20) if lost else (20,)) and plan["tier"] == "memory"
            if stage in ("after all parity", "first commit heard"):
                assert plan["step"] == 20
            assert await world.contents(3) == [content(rank, plan["step"]) for rank in range(3)]
            await world.save(30, 2)
            await world.save(40, 0)

    run(test)


def test_killed_while_rebuilding_from_parity_again_and_again(tmp_path):
    """Each attempt brings a new node in place of b, and dies at another stage; nothing of a or c is ever spoilt."""

    async def save():
        async with World(tmp_path, NODES, 0, config(tmp_path / "shared", scheme="xor")) as world:
            await world.save(10, 0)
            await world.save(20, 1)
            await world.await_saves()

    run(save)
    lose(tmp_path, "b")
    for attempt, stage in enumerate(WHILE_REBUILDING_FROM_PARITY, start=1):
        die_at(tmp_path, attempt, stage, "xor")
        lose(tmp_path, f"spare-{attempt}")

    async def recover():
        async with World(tmp_path, ["a", "x", "c"], 99, config(scheme="xor")) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (20, "memory")
            assert await world.contents(3) == [content(rank, 20) for rank in range(3)]
            await until(lambda: list((tmp_path / "x").glob("parity-*.json")))

    run(recover)
