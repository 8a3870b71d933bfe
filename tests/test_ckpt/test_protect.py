"""The way from commit to the shared tier, and what happens when storage fails: never anything to training."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from functools import wraps

import pytest
from agent_kit import FakeTransport, World, config, content, run, until

from ckpt.agent.flush.node import FlushNode
from ckpt.format.checksums import BLOCK_BYTES
from ckpt.format.manifest import NAME, parse_manifest
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier
from ckpt.timeouts import AgentDeadlines


def committed(path):
    return sorted(save.step for save in SharedTier(path, "test").steps())


def test_due_steps_are_flushed_and_old_ones_go(tmp_path):
    async def test():
        checkpoint = config(tmp_path / "shared")
        async with World(tmp_path, ["a", "b"], 0, checkpoint, ranks_per_node=2) as world:
            for i, step in enumerate((5, 10, 20, 25, 30)):
                await world.save(step, i % 3)
                await world.await_saves()
            for worker in world.workers:
                pinned = {event["step"]: event["pinned"] for event in worker.seen("committed")}
                assert pinned == {5: False, 10: True, 20: True, 25: False, 30: True}
                assert [event["step"] for event in worker.seen("flushed")] == [10, 20, 30]
            await until(lambda: len(world.monitors[0].messages) >= 9)
            commits = [event["step"] for event in world.monitors[0].seen("commit") if event["tier"] == "shared"]
            assert commits == [10, 20, 30]
            await world.monitors[1].event("commit", tier="memory", step=30)
            assert {event["tier"] for event in world.monitors[1].seen("commit")} == {"memory"}
            await until(lambda: committed(tmp_path / "shared") == [20, 30])
        folder = next((tmp_path / "shared" / "test").glob("step-0000000030*"))
        manifest = parse_manifest((folder / NAME).read_bytes())
        assert [place.rank for place in manifest.shards] == [0, 1, 2, 3]
        for place in manifest.shards:
            data = (folder / place.file).read_bytes()[place.offset :][: place.record.layout.nbytes]
            assert data == content(place.rank, 30)

    run(test)


@pytest.mark.parametrize("block", range(3))
def test_a_copy_damaged_on_the_wire_is_never_counted_and_the_next_save_is_good(tmp_path, monkeypatch, block):
    """One bit of one block on its way to node b: the save is dropped by name, whichever block it is."""
    data = os.urandom(2 * BLOCK_BYTES + 5000)
    real, seen = FakeTransport.send_range, []

    def damaging(self, to, tag, piece):
        if to == 1:
            seen.append(len(piece))
            if len(seen) == block + 1:
                piece = bytearray(piece)
                piece[-1] ^= 1
                piece = memoryview(piece)
        return real(self, to, tag, piece)

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            monkeypatch.setattr(FakeTransport, "send_range", damaging)
            for worker in world.workers:
                worker.save(5, 0, data)
            for worker in world.workers:
                dropped = await worker.event("dropped", step=5)
                assert f"block {block} of rank 0, step 5 does not verify" in dropped["reason"]
            assert not (tmp_path / "b" / "copy-0-0-0.json").exists()
            await world.save(6, 1)
            assert (tmp_path / "b" / "copy-0-0-0.json").exists()

    run(test)


def test_a_step_saved_because_of_a_stop_is_flushed_whatever_the_cadence(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(tmp_path / "shared")) as world:
            await world.save(7, 0, flush=True)
            await world.await_saves()
            assert committed(tmp_path / "shared") == [7]

    run(test)


def fill_disk(monkeypatch):
    def pwrite(descriptor, data, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)


def make_no_directory(monkeypatch):
    def mkdir(path, mode=0o777, **_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "mkdir", mkdir)


def lose_manifest(monkeypatch):
    def commit(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(SharedTier, "commit", commit)


@pytest.mark.parametrize("fail", [fill_disk, make_no_directory, lose_manifest])
def test_a_flush_that_fails_is_reported_and_frees_the_slots(tmp_path, monkeypatch, fail):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(tmp_path / "shared")) as world:
            await world.save(10, 0)
            await world.await_saves()
            with monkeypatch.context() as patch:
                fail(patch)
                await world.save(20, 1)
                for worker in world.workers:
                    assert not (await worker.event("flushed", step=20))["reached"]
                await world.await_saves()
                problem = await world.monitors[0].event("problem", step=20)
                assert problem["what"] == "flush to the shared tier failed"
            await world.save(30, 2)
            await world.await_saves()
            assert committed(tmp_path / "shared") == [10, 30]

    run(test)


def test_a_hung_storage_holds_slots_only_until_the_deadline_and_never_a_half_written_step(tmp_path, monkeypatch):
    release = threading.Event()
    write_node = SharedTier.write_node

    def hang(*args):
        release.wait(30)
        return write_node(*args)

    async def test():
        monkeypatch.setattr(SharedTier, "write_node", hang)
        deadlines = AgentDeadlines(flush_s=0.2)
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared"), deadlines=deadlines) as world:
            await world.save(10, 0)
            assert not (await world.workers[0].event("flushed", step=10))["reached"]
            await world.save(20, 1)
            assert not (await world.workers[0].event("flushed", step=20))["reached"]
            problem = await world.monitors[0].event("problem", step=20)
            assert "step 10 is still being written" in problem["detail"]
            release.set()
            monkeypatch.setattr(SharedTier, "write_node", write_node)
            await until(lambda: list((tmp_path / "shared" / "test").rglob("node-00000.data")))
            await until(lambda: not world.agents[0]._flush._writing)
            await world.save(30, 2)
            await world.await_saves()
            assert committed(tmp_path / "shared") == [30]

    try:
        run(test)
    finally:
        release.set()


@pytest.mark.parametrize("tier", ["shared", "nvme"])
def test_memory_that_has_changed_since_its_seal_reaches_no_tier(tmp_path, monkeypatch, tier):
    """A bit of rank 1 flips after the commit: the step goes nowhere, the copy on the other node is what is restored."""
    checkpoint = {
        "shared": config(tmp_path / "shared"),
        "nvme": config(nvme={"path": str(tmp_path / "nvme"), "every_steps": 10}),
    }[tier]
    flush = FlushNode._on_flush_write

    @wraps(flush)
    async def after_a_flip(self, source, tier, save):
        if save.step == 20 and self._context.place.node == "b":
            with (tmp_path / "b" / "own-0-1.data").open("r+b") as file:
                file.write(b"\xff")
        return await flush(self, source, tier, save)

    async def test():
        monkeypatch.setattr(FlushNode, "_on_flush_write", after_a_flip)
        async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
            for slot, step in enumerate((10, 20)):
                await world.save(step, slot)
                await world.await_saves()
            problem = await world.monitors[0].event("problem", step=20, failed=tier)
            assert "node b: flush_write: rank 1: its shard in memory does not match its checksums" in problem["detail"]
            path = tmp_path / tier
            there = NvmeTier(path, "test", node="a") if tier == "nvme" else SharedTier(path, "test")
            assert [save.step for save in there.steps()] == [10]
        async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"], plan["skipped"]) == (20, "memory", [])
            assert await world.contents(2) == [content(rank, 20) for rank in range(2)]

    run(test)


def test_a_due_step_is_skipped_while_an_older_one_is_on_its_way_and_an_asked_one_waits(tmp_path, monkeypatch):
    release = threading.Event()
    write_node = SharedTier.write_node

    def hang(*args):
        release.wait(30)
        return write_node(*args)

    async def test():
        monkeypatch.setattr(SharedTier, "write_node", hang)
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared", keep=3)) as world:
            await world.save(10, 0)
            await world.save(20, 1)
            assert not (await world.workers[0].event("committed", step=20))["pinned"]
            assert "step 10" in (await world.monitors[0].event("problem", step=20))["detail"]
            await world.save(25, 2, flush=True)
            flush = asyncio.ensure_future(world.await_saves())
            await asyncio.sleep(0)
            assert not flush.done()
            release.set()
            await flush
            assert committed(tmp_path / "shared") == [10, 25]

    try:
        run(test)
    finally:
        release.set()


def test_no_manifest_is_written_when_one_node_could_not_write(tmp_path, monkeypatch):
    write_node = SharedTier.write_node

    def one_fails(self, save, node_rank, shards):
        if node_rank == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return write_node(self, save, node_rank, shards)

    async def test():
        monkeypatch.setattr(SharedTier, "write_node", one_fails)
        async with World(tmp_path, ["a", "b"], 0, config(tmp_path / "shared")) as world:
            await world.save(10, 0)
            await world.await_saves()
            problem = await world.monitors[0].event("problem", step=10)
            assert "node b" in problem["detail"]
        assert not list((tmp_path / "shared").rglob(NAME))

    run(test)
