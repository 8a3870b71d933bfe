"""A restore from S3 into another world: what one node reads for all, as long as memory has room."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agent_kit import DEADLINES, World, config, content, lose, run, until
from crash_kit import Fuse, Trainers, crashes
from s3_kit import S3Server, counted_reads, s3_server
from test_killed_anywhere import beyond, restored, run_for

from ckpt.agent.restore.node import RestoreNode
from ckpt.format.checksums import BLOCK_BYTES
from ckpt.format.shard_record import read_record
from ckpt.tiers.s3 import S3Tier

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
SLOTS = 3  # two that are kept, one for the bucket


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server) -> dict[str, Any]:
    """A section of its own."""
    return {**server.section(server.fresh_url().rpartition("/")[2]), "every_steps": 10}


@pytest.fixture
def memory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """The memory of node x: so many blocks, and a little for what is always there."""
    path, blocks = tmp_path / "x", int(request.param)
    path.mkdir(mode=0o700)
    size = blocks * BLOCK_BYTES + BLOCK_BYTES // 2
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(path)], check=True)
    yield blocks
    subprocess.run(["umount", "-l", str(path)], check=True)


async def saved(root: Path, bucket: dict[str, Any], nbytes: int) -> list[bytes]:
    """Step 10 of two ranks lies in the bucket, and nowhere else."""
    async with World(root, ["a", "b"], 0, config(s3=bucket)) as world:
        for worker in world.workers:
            worker.save(10, 0, content(worker.rank, 10, nbytes))
        for worker in world.workers:
            await worker.event("flushed", step=10)
    lose(root, "a", "b")
    return [content(rank, 10, nbytes) for rank in range(2)]


def test_it_serves_the_next_attempt_and_goes_with_the_first_commit(
    tmp_path: Path, bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        data = await saved(tmp_path, bucket, 5000)
        async with World(tmp_path, ["x"], 1, config(s3=bucket)) as world:
            assert (await world.plan())["tier"] == "s3"
        lengths = counted_reads(monkeypatch)
        async with World(tmp_path, ["x", "y", "z"], 2, config(s3=bucket)) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (10, "memory")
            for worker in world.workers:
                assert [await worker.read(rank) for rank in range(2)] == data
            await world.save(11, 1)
            await until(lambda: steps_in(tmp_path / "x") == {11})
        assert not lengths

    run(test)


def test_a_part_of_it_is_no_reason_not_to_wait_for_a_slow_bucket(
    tmp_path: Path, bucket: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadlines = replace(DEADLINES, answer_s=1)
    catalog = S3Tier.catalog

    def slow(self: S3Tier) -> Any:
        threading.Event().wait(2 * deadlines.answer_s)
        return catalog(self)

    async def test() -> None:
        data = await saved(tmp_path, bucket, 5000)
        async with World(tmp_path, ["x"], 1, config(s3=bucket)) as world:
            await world.plan()
        (tmp_path / "x" / "copy-0-0-1.json").unlink()  # as if it had been killed before
        monkeypatch.setattr(S3Tier, "catalog", slow)
        async with World(tmp_path, ["x"], 2, config(s3=bucket), deadlines=deadlines) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (10, "s3")
            assert await world.contents(2) == data

    run(test)


def steps_in(ram_dir: Path) -> set[int]:
    return {read_record(ram_dir, path.stem).save.step for path in ram_dir.glob("copy-*.json")}


@needs_root
@pytest.mark.parametrize(("memory", "kept"), [(8, 0), (9, 1), (10, 2)], indirect=["memory"])
def test_it_leaves_room_for_what_workers_load_and_save(
    tmp_path: Path, bucket: dict[str, Any], memory: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two shards of a block each; what is not kept is read once more."""

    async def test() -> None:
        data = await saved(tmp_path, bucket, BLOCK_BYTES)
        lengths = counted_reads(monkeypatch)
        async with World(tmp_path, ["x"], 1, config(s3=bucket)) as world:
            assert (await world.plan())["tier"] == "s3"
            assert len(list((tmp_path / "x").glob("copy-*.json"))) == kept
            assert await world.contents(2) == data
            assert sum(lengths) == (2 + 2 - kept) * BLOCK_BYTES
            for slot in range(SLOTS):
                world.workers[0].stage(20 + slot, slot, bytes(2 * BLOCK_BYTES))

    run(test)


@needs_root
@pytest.mark.parametrize("memory", [0], indirect=True)
def test_memory_that_others_have_filled_meanwhile_is_no_reason_not_to_restore(
    tmp_path: Path, bucket: dict[str, Any], memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestoreNode, "_has_room", lambda *_: True)  # as there was when it looked

    async def test() -> None:
        data = await saved(tmp_path, bucket, BLOCK_BYTES)
        async with World(tmp_path, ["y", "x"], 1, config(s3=bucket), ranks_per_node=2) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"], plan["skipped"]) == (10, "s3", [])
            assert [path.name for path in tmp_path.glob("*/copy-*.json")] == ["copy-0-0-0.json"]
            assert await world.contents(2) == data

    run(test)


async def restored_into_one(bucket: dict[str, Any], root: Path, fuse: Fuse) -> None:
    fuse.arm()
    async with World(root, ["x"], 1, config(s3=bucket)) as world:
        await Trainers(world, SLOTS).load()
        await world.contents(2)


@pytest.mark.faults
def test_killed_anywhere_it_leaves_a_state_that_restores(tmp_path: Path, bucket: dict[str, Any]) -> None:
    before = tmp_path / "before"
    before.mkdir()
    run_for(partial(saved, before, bucket, 5000))
    tiers = set()
    for crash in crashes(partial(restored_into_one, bucket), before, tmp_path):
        plan = run_for(lambda c=crash: restored(c.root, ["x", "y"], config(s3=bucket)))
        assert (plan["step"], plan["skipped"]) == (10, []), crash
        assert not beyond(SLOTS, crash.root / "x") and not list((crash.root / "x").glob("copy-0-*")), crash
        tiers.add(plan["tier"])
    assert tiers == {"s3", "memory"}
