"""SIGKILL of every agent while nodes' disks are written, tidied and read, and all memory lost: a whole step is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agent_kit import World, config, content, lose, run

NODES = ["a", "b", "c"]
_DRIVER = """
import asyncio, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from agent_kit import World, run
from test_nvme_killed import NODES, checkpoint
from ckpt.agent.shards.memory_store import MemoryStore
from ckpt.tiers.nvme import NvmeTier
root, attempt, (where, method, count) = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(":")
owner = {"tier": NvmeTier, "memory_store": MemoryStore, "os": os}[where]
real, left, armed = getattr(owner, method), [int(count)], [False]
def dying(*args, **kwargs):
    if armed[0]:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(owner, method, dying)
async def scenario():
    armed[0] = attempt > 0 or method in ("retain", "rmdir")  # it goes on beside the next save
    async with World(root, NODES, attempt, checkpoint(root)) as world:
        await world.plan()
        for slot, step in enumerate((10, 20, 30)):
            armed[0] = armed[0] or step == 30
            await world.save(step, slot)
            await world.await_saves()
        await world.monitors[0].event("never")
run(scenario)
"""


def checkpoint(root: Path):
    return config(scheme="none", nvme={"path": str(root / "nvme"), "every_steps": 10, "keep": 2})


def die_at(root: Path, attempt: int, stage: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER, str(root), str(attempt), stage, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


def steps_after(root: Path, attempt: int) -> int:
    found = []

    async def test():
        async with World(root, NODES, attempt, checkpoint(root)) as world:
            plan = await world.plan()
            assert plan["tier"] == "nvme"
            assert await world.contents(3) == [content(rank, plan["step"]) for rank in range(3)]
            found.append(plan["step"])
            await world.save(50, 0, flush=True)
            await world.await_saves()
            assert not world.monitors[0].seen("problem")

    run(test)
    return found[0]


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        *((f"tier:write_node:{n}", {20}) for n in range(3)),
        *((f"os:pwrite:{n}", {20}) for n in range(3)),
        *((f"tier:commit:{n}", {20}) for n in range(3)),
        *((f"tier:retain:{n}", {30}) for n in range(6, 9)),  # three for each step
        ("os:rmdir:0", {30}),  # inside the removal of a step on its way out
        ("os:rmdir:2", {30}),
    ],
)
def test_killed_while_a_step_goes_to_the_nodes_disks(tmp_path, stage, expected):
    die_at(tmp_path, 0, stage)
    lose(tmp_path, *NODES)
    assert steps_after(tmp_path, 1) in expected


def test_killed_again_and_again_while_shards_come_back_from_disk(tmp_path):
    die_at(tmp_path, 0, "tier:retain:6")
    for attempt, stage in enumerate(
        ("memory_store:room_for:1", "memory_store:publish:0", "memory_store:publish:2"), start=1
    ):
        lose(tmp_path, *NODES)
        die_at(tmp_path, attempt, stage)
    lose(tmp_path, *NODES)
    assert steps_after(tmp_path, 9) == 30
