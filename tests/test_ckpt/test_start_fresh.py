"""A run that begins at step 0 beside the steps of another one: its later attempts continue its own steps, or none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from agent_kit import LINE, NAMESPACE, World, config, run

from ckpt.config import CheckpointConfig
from ckpt.format.line import NOBODY
from ckpt.format.manifest import NAME
from ckpt.tiers.posix import SharedTier

FRESH = LINE.fork(None, number=2, began_s=0.0, seed="fresh", owner=NOBODY)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedTier:
    """Step 30 of an earlier run, and step 10 of one that has begun at step 0. All memory is lost."""

    async def two_runs() -> None:
        monkeypatch.setattr("agent_kit.RUN_ID", "earlier")
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared")) as world:
            await world.save(30, 0)
            await world.await_saves()
        shutil.rmtree(tmp_path / "a")
        monkeypatch.setattr("agent_kit.RUN_ID", "fresh")
        async with World(tmp_path, ["a"], 0, fresh(tmp_path)) as world:
            await world.save(10, 0, line=FRESH)
            await world.await_saves()
            await world.save(15, 1, line=FRESH)  # goes to no lower tier

    run(two_runs)
    return SharedTier(tmp_path / "shared", NAMESPACE)


def fresh(root: Path) -> CheckpointConfig:
    return replace(config(root / "shared"), start_fresh=True)


def next_start(root: Path, *, attempt: int = 1, memory: str = "lost") -> tuple[int | None, str]:
    """The step that the next attempt restores, and the steps that were passed over; or the error."""
    found: list[tuple[int | None, str]] = []

    async def start() -> None:
        if memory == "lost":
            shutil.rmtree(root / "a")
        async with World(root, ["a"], attempt, fresh(root)) as world:
            reply = await world.workers[0].request("plan")
            passed = "; ".join(f"step {each['step']}: {each['reason']}" for each in reply.get("skipped", []))
            found.append((reply.get("step"), reply.get("error", passed)))

    run(start)
    return found[0]


def manifest(shared: SharedTier, step: int) -> Path:
    (path,) = shared.folder.glob(f"step-{step:010d}*/{NAME}")
    return path


def test_the_next_attempt_continues_the_runs_own_steps(tmp_path: Path, shared: SharedTier) -> None:
    assert next_start(tmp_path, memory="kept") == (15, "")
    assert next_start(tmp_path) == (10, "")


def damage_manifest(shared: SharedTier) -> None:
    path = manifest(shared, 10)
    path.write_bytes(path.read_bytes()[:-5])


def damage_data(shared: SharedTier) -> None:
    path = manifest(shared, 10).with_name("node-00000.data")
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [damage_manifest, damage_data])
def test_an_attempt_whose_own_steps_cannot_be_restored_is_refused(
    tmp_path: Path, shared: SharedTier, damage: Callable[[SharedTier], None]
) -> None:
    damage(shared)
    step, error = next_start(tmp_path)
    assert step is None
    assert "this run has saved steps, and none of them can be restored: step 10: " in error and "step 30" not in error
    assert "start the job anew" in error


def test_a_new_start_of_the_job_begins_at_step_0_once_more(
    tmp_path: Path, shared: SharedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage_manifest(shared)
    monkeypatch.setattr("agent_kit.RUN_ID", "anew")
    step, passed = next_start(tmp_path, attempt=0)
    assert step is None and "step 10: " in passed


def test_steps_in_memory_alone_that_are_lost_lead_to_step_0_and_not_to_another_line(
    tmp_path: Path, shared: SharedTier
) -> None:
    shutil.rmtree(manifest(shared, 10).parent)
    step, passed = next_start(tmp_path, memory="kept")
    assert step == 15
    for path in (tmp_path / "a").glob("own-0-*.data"):
        path.write_bytes(b"damaged")
    step, passed = next_start(tmp_path, memory="kept")
    assert step is None and passed.startswith("step 15: rank 0 of 1: no node's memory holds a shard that verifies")


def test_the_users_rollback_counts_more_than_the_fresh_start(tmp_path: Path, shared: SharedTier) -> None:
    back = LINE.fork(30, number=3, began_s=1.0, seed="back", owner=NOBODY)
    shared.begin_line(back)
    assert next_start(tmp_path)[0] == 30


def test_a_later_attempt_does_not_begin_at_step_0_because_the_directory_does_not_answer(
    tmp_path: Path, shared: SharedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(tier: SharedTier) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(SharedTier, "check", fails)
    step, error = next_start(tmp_path)
    assert step is None and "the shared tier cannot be read: " in error and "Input/output error" in error
    monkeypatch.setattr("agent_kit.RUN_ID", "anew")
    assert next_start(tmp_path, attempt=0) == (None, "")
