"""NVMe, shared and S3 side by side: each flushed at its own cadence, none held up by another, all part of a restore."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from agent_kit import DEADLINES, NAMESPACE, World, config, content, lose, run, save_id, until
from s3_kit import S3Server, answering, counted_reads, s3_server

from ckpt import newest_steps
from ckpt.format.checksums import BLOCK_BYTES
from ckpt.format.manifest import NAME
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_bucket import S3Bucket
from ckpt.tiers.throttle import Throttle

NODES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


def nvme(root: Path, **keys: Any) -> dict[str, Any]:
    return {"path": str(root / "nvme"), "every_steps": 10, **keys}


def steps_on(root: Path, node: str) -> list[int]:
    return [save.step for save in NvmeTier(root / "nvme", NAMESPACE, node=node).steps()]


def expected(world_size: int, step: int) -> list[bytes]:
    return [content(rank, step) for rank in range(world_size)]


def lose_nvme(root: Path, *nodes: str) -> None:
    for node in nodes:
        shutil.rmtree(root / "nvme" / node)


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))


class TestFlush:
    """From commit to every tier."""

    def test_each_tier_takes_what_is_due_there_keeps_its_own_number_and_tells_of_its_commits(self, tmp_path, server):
        s3 = {**server.section(server.fresh_url().rpartition("/")[2]), "every_steps": 20, "keep": 1}
        section = {"nvme": nvme(tmp_path, every_steps=5), "s3": s3}

        async def test():
            checkpoint = config(tmp_path / "shared", **section)
            async with World(tmp_path, ["a", "b"], 0, checkpoint, ranks_per_node=2) as world:
                for step in (3, 5, 10, 15, 20, 30, 40):
                    await world.save(step, step % 5)
                    await world.await_saves()
                due = {"nvme": [5, 10, 15, 20, 30, 40], "shared": [10, 20, 30, 40], "s3": [20, 40], "memory": [3]}
                for tier in ("nvme", "shared", "s3"):
                    for step in due[tier]:
                        await world.monitors[0].event("commit", tier=tier, step=step)
                    seen = [event["step"] for event in world.monitors[0].seen("commit") if event["tier"] == tier]
                    assert seen == due[tier]
                    for worker in world.workers:
                        assert {e["step"] for e in worker.seen("flushed") if e["tier"] == tier} == set(due[tier])
                for node in ("a", "b"):
                    await until(lambda n=node: steps_on(tmp_path, n) == [40, 30])
                assert not world.monitors[0].seen("problem")
                await until(lambda: newest_steps(section_of(tmp_path, s3)) == {"shared": 40, "s3": 40})
                tier = S3Tier(s3["url"], NAMESPACE, server.options)
                await until(lambda: [entry.step for entry in tier.catalog()] == [40])

        run(test)

    def test_a_slot_stays_pinned_until_the_last_tier_has_the_step(self, tmp_path, monkeypatch):
        release = threading.Event()
        write_node = SharedTier.write_node

        def hang(self, *args):
            if not self.node_local:
                release.wait(30)
            return write_node(self, *args)

        async def test():
            monkeypatch.setattr(SharedTier, "write_node", hang)
            async with World(tmp_path, ["a"], 0, config(tmp_path / "shared", nvme=nvme(tmp_path))) as world:
                await world.save(10, 0)
                assert (await world.workers[0].event("flushed", step=10, tier="nvme"))["pinned"]
                assert save_id(10) in world.agents[0]._saves.pinned
                for slot, step in enumerate((20, 30, 40), start=1):  # a stuck tier holds up no other
                    await world.save(step, slot)
                    await world.workers[0].event("flushed", step=step, tier="nvme")
                    await world.monitors[0].event("problem", what="not flushed to the shared tier", step=step)
                    await world.workers[0].event("flush_dropped", step=step, tier="shared", under_way="10")
                release.set()
                assert not (await world.workers[0].event("flushed", step=10, tier="shared"))["pinned"]
                await world.await_saves()
                assert [save.step for save in SharedTier(tmp_path / "shared", NAMESPACE).steps()] == [10]

        try:
            run(test)
        finally:
            release.set()

    def test_what_fails_in_one_tier_is_reported_and_harms_no_other(self, tmp_path):
        dead = {"url": "s3://bucket/x", "endpoint_url": "http://127.0.0.1:9", "region": "us-east-1", "every_steps": 10}

        async def test():
            checkpoint = config(tmp_path / "shared", nvme=nvme(tmp_path), s3=dead)
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                for agent in world.agents:
                    bucket = agent._flush._context.tiers["s3"]._bucket
                    bucket._options = replace(bucket._options, attempts=1)
                await world.save(10, 0)
                for tier in ("nvme", "shared"):
                    await world.monitors[0].event("commit", tier=tier, step=10)
                problem = await world.monitors[0].event("problem", step=10, failed="s3")
                assert problem["what"] == "flush to the s3 tier failed" and "s3://bucket/x/test" in problem["detail"]
                for worker in world.workers:
                    assert not (await worker.event("flushed", step=10, tier="s3"))["reached"]
                await world.save(15, 1)

        run(test)

    def test_a_bucket_that_does_not_answer_holds_a_slot_until_the_deadline_and_training_not_at_all(self, tmp_path):
        release = threading.Event()

        async def test(s3):
            deadlines = replace(DEADLINES, flush_s=3)
            checkpoint = config(tmp_path / "shared", s3=s3)
            world = World(tmp_path, ["a", "b"], 0, checkpoint, deadlines=deadlines, asks_for_plan=False)
            async with world:
                for worker in world.workers:
                    worker.has_plan = True  # no restore is agreed with such a bucket
                for slot, step in enumerate((10, 15)):
                    await world.save(step, slot)
                problem = await world.monitors[0].event("problem", step=10, failed="s3")
                assert "no answer within 3 s" in problem["detail"]
                for worker in world.workers:
                    assert not (await worker.event("flushed", step=10, tier="s3"))["reached"]
                await world.monitors[0].event("commit", tier="shared", step=10)
                await world.await_saves()

        with answering(lambda request: release.wait(30)) as options:
            section = {"url": "s3://bucket/x", "endpoint_url": options.endpoint_url, "region": "us-east-1"}
            try:
                run(lambda: test({**section, "path_style": True, "every_steps": 10}))
            finally:
                release.set()

    def test_a_node_whose_disk_is_full_commits_the_step_nowhere_and_costs_no_older_one(self, tmp_path, monkeypatch):
        write_node = NvmeTier.write_node

        def full(self, save, node_rank, shards):
            if save.step in (20, 30) and node_rank == 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write_node(self, save, node_rank, shards)

        async def test():
            monkeypatch.setattr(NvmeTier, "write_node", full)
            async with World(tmp_path, ["a", "b"], 0, config(nvme=nvme(tmp_path, keep=2))) as world:
                for i, step in enumerate((10, 20, 30, 40)):
                    await world.save(step, i % 3)
                    await world.await_saves()
                for step in (20, 30):
                    problem = await world.monitors[0].event("problem", step=step)
                    assert "node b" in problem["detail"] and "No space left" in problem["detail"]
                await world.monitors[0].event("commit", tier="nvme", step=40)
                for node in ("a", "b"):
                    await until(lambda n=node: steps_on(tmp_path, n) == [40, 10])

        run(test)

    def test_a_commit_that_one_node_misses_costs_no_older_step(self, tmp_path, monkeypatch):
        """Step 20 is committed on a alone: with keep 2 it must not push out step 10 there."""
        commit = NvmeTier.commit

        def one_misses(self, save, world_size, places):
            if save.step == 20 and self.node == "b":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return commit(self, save, world_size, places)

        async def test():
            monkeypatch.setattr(NvmeTier, "commit", one_misses)
            async with World(tmp_path, ["a", "b"], 0, config(nvme=nvme(tmp_path, keep=2))) as world:
                for i, step in enumerate((10, 20)):
                    await world.save(step, i)
                    await world.await_saves()
                assert steps_on(tmp_path, "a") == [20, 10] and steps_on(tmp_path, "b") == [10]
                await world.save(30, 2)
                await world.await_saves()
                for node in ("a", "b"):
                    await until(lambda n=node: steps_on(tmp_path, n) == [30, 10])

        run(test)


class TestRestore:
    """The newest step that is complete across nodes and tiers together."""

    @pytest.mark.parametrize("kept", list(product(("memory", "nvme", "nothing"), repeat=3)), ids="-".join)
    def test_a_step_is_restored_from_whatever_mixture_of_memories_and_disks_holds_all_of_it(self, tmp_path, kept):
        async def test():
            checkpoint = config(scheme="none", nvme=nvme(tmp_path))
            async with World(tmp_path, NODES, 0, checkpoint, ranks_per_node=2) as world:
                await world.save(10, 0)
                await world.await_saves()
            lose(tmp_path, *(node for node, where in zip(NODES, kept, strict=True) if where != "memory"))
            lose_nvme(tmp_path, *(node for node, where in zip(NODES, kept, strict=True) if where != "nvme"))
            async with World(tmp_path, NODES, 1, checkpoint, ranks_per_node=2) as world:
                plan = await world.plan()
                if "nothing" in kept:
                    assert (plan["step"], plan["tier"]) == (None, "none")
                    return
                assert (plan["step"], plan["tier"]) == (10, "nvme" if "nvme" in kept else "memory")
                sources = (await world.monitors[0].event("restore_plan"))["sources"]
                assert sources == {
                    source: ranks
                    for source, where in (("own", "memory"), ("nvme", "nvme"))
                    if (ranks := [rank for rank in range(6) if kept[rank // 2] == where])
                }
                assert [await world.workers[-1].read(rank) for rank in range(6)] == expected(6, 10)
                for place in world.places:  # what came from a disk is in memory again
                    assert len(list(place.ram_dir.glob("own-*.json"))) == 2

        run(test)

    def test_redundancy_is_made_anew_of_what_came_from_disk(self, tmp_path):
        async def test():
            checkpoint = config(nvme=nvme(tmp_path))
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                await world.save(10, 0)
                await world.await_saves()
            lose(tmp_path, "a", "b")
            async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
                assert (await world.plan())["tier"] == "nvme"
                await until(lambda: all(len(list(place.ram_dir.glob("copy-*.json"))) == 1 for place in world.places))
            lose(tmp_path, "a")
            lose_nvme(tmp_path, "a", "b")
            async with World(tmp_path, ["x", "b"], 2, checkpoint) as world:
                assert (await world.plan())["tier"] == "memory"
                assert await world.contents(2) == expected(2, 10)

        run(test)

    def test_the_newest_step_wins_whichever_tier_holds_it(self, tmp_path):
        async def test():
            checkpoint = config(tmp_path / "shared", every_steps=30, nvme=nvme(tmp_path, every_steps=20))
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                for i, step in enumerate((20, 30, 40, 45)):
                    await world.save(step, i % 4)
                    await world.await_saves()
            lose(tmp_path, "a", "b")
            async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
                assert ((await world.plan())["step"], (await world.plan())["tier"]) == (40, "nvme")
                assert await world.contents(2) == expected(2, 40)
            lose(tmp_path, "a", "b")
            flip(next((tmp_path / "nvme" / "b").rglob("step-0000000040*/node-00001.data")))
            async with World(tmp_path, ["a", "b"], 2, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"], [s["step"] for s in plan["skipped"]]) == (30, "shared", [40])
                assert await world.contents(2) == expected(2, 30)

        run(test)

    @pytest.mark.parametrize(("nodes", "ranks_per_node"), [(["a", "b"], 1), (["b", "a"], 2), (["a", "b", "x"], 1)])
    def test_another_world_reads_other_nodes_disks(self, tmp_path, nodes, ranks_per_node):
        async def test():
            checkpoint = config(scheme="none", nvme=nvme(tmp_path))
            async with World(tmp_path, ["a", "b"], 0, checkpoint, ranks_per_node=2) as world:
                await world.save(10, 0)
                await world.await_saves()
            lose(tmp_path, "a", "b")
            async with World(tmp_path, nodes, 1, checkpoint, ranks_per_node) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"], plan["world_size"]) == (10, "nvme", 4)
                for worker in world.workers:
                    assert [await worker.read(rank) for rank in range(4)] == expected(4, 10)

        run(test)

    def test_a_part_that_is_damaged_on_disk_is_taken_from_the_next_tier(self, tmp_path):
        async def test():
            checkpoint = config(tmp_path / "shared", scheme="none", nvme=nvme(tmp_path))
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                await world.save(10, 0)
                await world.await_saves()
            lose(tmp_path, "a", "b")
            flip(next((tmp_path / "nvme" / "b").rglob("node-00001.data")))
            async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"], plan["skipped"]) == (10, "shared", [])
                assert (await world.monitors[0].event("restore_plan"))["sources"] == {"nvme": [0], "shared": [1]}
                assert await world.contents(2) == expected(2, 10)
            assert list((tmp_path / "nvme" / "b").rglob("node-00001.data"))  # nothing is deleted by a restore

        run(test)

    @pytest.mark.parametrize("nodes", [["x", "y"], ["x"], ["x", "y", "z"]])
    def test_from_s3_when_all_else_is_lost_whatever_the_new_world(self, tmp_path, server, nodes, monkeypatch):
        """Each byte once, whoever wants it: peers have it then."""
        read_bytes = counted_reads(monkeypatch)
        size = 3 * BLOCK_BYTES + 17
        section = {**server.section(server.fresh_url().rpartition("/")[2]), "every_steps": 10}
        data = [bytes([rank + 1]) * size for rank in range(2)]

        async def test():
            checkpoint = config(s3=section)
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                for worker in world.workers:
                    worker.save(10, 0, data[worker.rank])
                for worker in world.workers:
                    await worker.event("flushed", step=10)
                assert not world.monitors[0].seen("problem")
            lose(tmp_path, "a", "b")
            async with World(tmp_path, nodes, 1, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"], plan["world_size"]) == (10, "s3", 2)
                assert (await world.monitors[0].event("restore_plan"))["sources"] == {"s3": [0, 1]}
                for worker in world.workers:
                    part = await worker.read(1, [1, 3])
                    assert part[BLOCK_BYTES : 2 * BLOCK_BYTES] == data[1][:BLOCK_BYTES]
                    assert part[3 * BLOCK_BYTES :] == data[1][:17]
                    assert [await worker.read(rank) for rank in range(2)] == data
                assert sum(read_bytes) == 2 * size
                if len(nodes) == 2:  # and as safe as after a save
                    await until(lambda: all(len(list(place.ram_dir.glob("*.json"))) == 2 for place in world.places))

        run(test)

    def test_a_dead_s3_delays_no_restore_from_memory_and_is_no_reason_to_start_at_zero(self, tmp_path, monkeypatch):
        section = {"url": "s3://bucket/x", "endpoint_url": "http://127.0.0.1:9", "region": "us-east-1"}
        release = threading.Event()

        async def test():
            async with World(tmp_path, ["a"], 0, config()) as world:
                await world.save(10, 0)
            monkeypatch.setattr(S3Tier, "catalog", lambda self: release.wait(30) and [])
            deadlines = replace(world._deadlines, answer_s=0.2)
            async with World(tmp_path, ["a"], 1, config(s3=section), deadlines=deadlines) as world:
                assert (await world.plan())["step"] == 10
                problem = await world.monitors[0].event("problem", what="s3 tier cannot be read")
                assert problem["detail"] == "no answer within 0.2 s"
            lose(tmp_path, "a")
            release.set()
            monkeypatch.setattr(S3Tier, "catalog", lambda self: self._bucket.get("x"))
            monkeypatch.setattr(S3Bucket, "get", refused)
            async with World(tmp_path, ["a"], 2, config(s3=section)) as world:
                answer = await world.workers[0].request("plan")
                assert "the s3 tier cannot be read: 503" in answer["error"]

        def refused(*_):
            raise OSError("503 SlowDown")

        try:
            run(test)
        finally:
            release.set()

    def test_a_step_without_its_manifest_on_one_disk_is_not_offered(self, tmp_path):
        async def test():
            checkpoint = config(scheme="none", nvme=nvme(tmp_path))
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                await world.save(10, 0)
                await world.await_saves()
            lose(tmp_path, "a", "b")
            next((tmp_path / "nvme" / "b").rglob(NAME)).unlink()
            async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], [s["step"] for s in plan["skipped"]]) == (None, [10])

        run(test)


def section_of(root: Path, s3: dict[str, Any]) -> dict[str, Any]:
    return {"namespace": NAMESPACE, "shared": {"path": str(root / "shared")}, "s3": s3, "nvme": nvme(root)}


def test_a_rate_limit_spreads_writes_evenly_over_time() -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    throttle = Throttle(1000, clock=lambda: now[0], sleep=sleep)
    for _ in range(4):
        throttle.take(500)
    assert slept == [0.5, 0.5, 0.5]
    now[0] += 10.0  # what was not used is not saved up
    throttle.take(500)
    throttle.take(500)
    assert slept == [0.5, 0.5, 0.5, 0.5]
    Throttle(None, clock=lambda: now[0], sleep=sleep).take(1 << 40)
    assert len(slept) == 4
