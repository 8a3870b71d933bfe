"""A step that a restore passes over as its bytes are bad is quarantined; one that merely could not be read is not."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_kit import NAMESPACE, World, config, content, lose, run, until
from parity_kit import instead, of, saved
from s3_kit import S3Server, s3_server
from test_cli_ckpt import facts
from test_lease import CLAIM
from test_recover import damage, expected

from ckpt.agent.protect.gather_sum import Sums
from ckpt.agent.restore.leader import RestoreLeader
from ckpt.agent.rpc.peers import PeerError
from ckpt.config import CheckpointConfig
from ckpt.format.checksums import checksums
from ckpt.format.shard_record import SaveId
from ckpt.redundancy.parity_record import read_parity, write_parity
from ckpt.tiers import reads
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.tier import Tier


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture(autouse=True)
def ended(monkeypatch: pytest.MonkeyPatch) -> list[RestoreLeader]:
    """The leads of restores that have done all they had to."""
    found, lead = [], RestoreLeader.run

    async def run_to_the_end(self: RestoreLeader) -> None:
        await lead(self)
        found.append(self)

    monkeypatch.setattr(RestoreLeader, "run", run_to_the_end)
    return found


def spoil_parity(ram_dir: Path) -> None:
    """The parity of step 20: it matches its own record, and is wrong all the same."""
    record = read_parity(ram_dir, "parity-1")
    damage(ram_dir / "parity-1.data")
    data = (ram_dir / "parity-1.data").read_bytes()[: record.nbytes]
    write_parity(ram_dir, "parity-1", replace(record, blocks=checksums(memoryview(data))))


def notes(ram_dir: Path) -> list[str]:
    return [path.name for path in ram_dir.glob("bad-*")]


async def restored(root: Path, attempt: int, nodes: list[str], checkpoint: CheckpointConfig, step: int) -> World:
    """The agents of an attempt whose restore has taken this step and has come to its end."""
    world = await World(root, nodes, attempt, checkpoint, ranks_per_node=2).__aenter__()
    assert (await world.plan())["step"] == step
    return world


class TestMemory:
    def test_a_save_whose_lost_shard_is_bad_when_made_again_is_noted_on_every_node_until_it_is_overwritten(
        self, tmp_path: Path
    ) -> None:
        nodes = instead(["a"])

        async def test() -> None:
            await saved(tmp_path, of("xor"))
            spoil_parity(tmp_path / "c")
            lose(tmp_path, "a")
            world = await restored(tmp_path, 1, nodes, of("xor"), 10)
            problem = await world.monitors[0].event("problem", what="step quarantined", step=20)
            assert "rebuilt from parity, does not verify" in problem["detail"]
            await until(lambda: all(notes(place.ram_dir) for place in world.places))
            await world.__aexit__()
            for node in nodes[1:]:  # as somebody who looks for the reason finds it
                (row,) = [row for row in facts("ls", tmp_path / node) if row["step"] == 20]
                assert "quarantined by a restore: no rebuild from the parity of a, b, c, d" in row["problems"][0]
                assert row["shards"] == 2  # nothing was deleted
            world = await restored(tmp_path, 2, nodes, of("xor"), 10)
            assert (await world.plan())["skipped"] == []  # not tried again
            for step, slot in ((30, 0), (40, 1), (50, 0)):
                await world.save(step, slot)
            assert not any(notes(place.ram_dir) for place in world.places)
            await world.__aexit__()

        run(test)

    @pytest.mark.parametrize("how", ["peer lost", "memory full", "wire"])
    def test_what_may_be_gone_the_next_time_is_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[RestoreLeader], how: str
    ) -> None:
        """One that a wire has spoilt once is not even passed over."""
        nodes, pull = instead(["a"]), Sums.pull
        left = [1 if how == "wire" else 1 << 30]

        async def failing(
            self: Sums, save: SaveId, over: Any, addends: Any, nbytes: int, room: Any, *others: Any, landed: Any = None
        ) -> None:
            def spoilt(start: int, stop: int) -> None:
                if how == "wire" and save.step == 20 and left[0]:
                    left[0] -= 1
                    room(start, stop)[0] ^= 1
                landed(start, stop)

            await pull(self, save, over, addends, nbytes, room, *others, landed=landed and spoilt)
            if how != "wire" and save.step == 20 and left[0]:
                left[0] -= 1
                if how == "peer lost":
                    raise PeerError("node c: no bytes moved for 30 s")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        async def test() -> None:
            await saved(tmp_path, of("xor"))
            lose(tmp_path, "a")
            with monkeypatch.context() as faulty:
                faulty.setattr(Sums, "pull", failing)
                world = await restored(tmp_path, 1, nodes, of("xor"), 20 if how == "wire" else 10)
                if how == "wire":
                    assert not left[0] and await world.contents(8) == expected(8, 20)
                else:
                    assert (await world.plan())["skipped"][0]["step"] == 20
                await until(lambda: world.agents[0]._leads[0] in ended)
                assert not world.monitors[0].seen("problem")
            assert not any(notes(place.ram_dir) for place in world.places)
            await world.__aexit__()
            world = await restored(tmp_path, 2, nodes, of("xor"), 20)
            assert await world.contents(8) == expected(8, 20)
            await world.__aexit__()

        run(test)


def place(kind: str, root: Path, server: S3Server) -> tuple[CheckpointConfig, Callable[[str], Tier]]:
    """A job with one lower tier, and that tier as somebody else sees it from a node."""
    if kind == "s3":
        section = {**server.section(server.fresh_url().rpartition("/")[2]), "every_steps": 10}
        tier = S3Tier(str(section["url"]), NAMESPACE, server.options)
        return config(scheme="none", s3=section), lambda node: tier
    if kind == "nvme":
        section = {"path": str(root / "nvme"), "every_steps": 10}
        return config(scheme="none", nvme=section), lambda node: NvmeTier(root / "nvme", NAMESPACE, node=node)
    return config(root / "shared", scheme="none"), lambda node: SharedTier(root / "shared", NAMESPACE)


async def flushed(root: Path, checkpoint: CheckpointConfig) -> None:
    """Steps 10 and 20 are in the lower tier, and in no memory."""
    async with World(root, ["a", "b"], 0, checkpoint) as world:
        for step, slot in ((10, 0), (20, 1)):
            await world.save(step, slot)
            await world.await_saves()
    lose(root, "a", "b")


def flip(kind: str, tier: Tier) -> None:
    """A byte of rank 1, step 20."""
    save = tier.steps()[0]
    file = tier.read_manifest(save).shards[-1].file
    if isinstance(tier, S3Tier):
        key = tier._key(next(tier.catalog()).name, file)
        data = bytearray(tier._bucket.get(key))
        data[100] ^= 1
        tier._bucket.put(key, data)
    else:
        damage(Path(str(tier.data_path(save, file))))


def test_what_another_run_has_taken_over_is_quarantined_by_that_run_alone(tmp_path: Path, server: S3Server) -> None:
    """It did so while this one restored."""
    checkpoint, _ = place("shared", tmp_path, server)
    tier, go = SharedTier(tmp_path / "shared", NAMESPACE), asyncio.Event()

    async def test() -> None:
        await flushed(tmp_path, checkpoint)
        flip("shared", tier)
        async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
            restore = world.agents[1]._restore._on_restore

            async def held(source: int, **fields: Any) -> dict[str, Any]:
                answer = await restore(source, **fields)
                await go.wait()
                return answer

            world.agents[1]._peers._handlers["restore"] = held
            assert (await world.plan())["step"] == 10
            # Again and again, as a run that lives: the agent may just be about to write its own.
            await until(lambda: tier.write_claim(replace(CLAIM, run_id="run-2")) or world.monitors[0].seen("problem"))
            await world.monitors[0].event("problem", what="nothing goes to the shared tier any more")
            go.set()
            problem = await world.monitors[0].event("problem", what="step not quarantined", step=20)
            assert "taken over" in problem["detail"]
        assert tier.quarantined() == [] and [save.step for save in tier.steps()] == [20, 10]

    run(test)


@pytest.mark.parametrize("kind", ["shared", "nvme", "s3"])
class TestTiers:
    def test_a_step_that_is_bad_there_is_quarantined_with_the_reason(
        self, tmp_path: Path, server: S3Server, kind: str
    ) -> None:
        checkpoint, tier = place(kind, tmp_path, server)

        async def test() -> None:
            await flushed(tmp_path, checkpoint)
            flip(kind, tier("b"))
            async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
                assert (await world.plan())["step"] == 10
                monitor = world.monitors[1 if kind == "nvme" else 0]  # a node tells of its own disk
                problem = await monitor.event("problem", what="step quarantined", step=20)
                assert "node-00001.data: block 0 of rank 1 does not match its checksum" in problem["detail"]
                ((name, reason),) = tier("b").quarantined()
                assert name.startswith("bad-step-0000000020") and "block 0 of rank 1 does not match" in reason
                assert await world.contents(2) == expected(2, 10)
            lose(tmp_path, "a", "b")
            async with World(tmp_path, ["a", "b"], 2, checkpoint) as world:
                plan = await world.plan()
                assert plan["step"] == 10
                if kind != "nvme":  # there node a still has its part
                    assert plan["skipped"] == []

        run(test)

    def test_a_step_that_has_lost_a_file_is_passed_over(self, tmp_path: Path, server: S3Server, kind: str) -> None:
        checkpoint, tier = place(kind, tmp_path, server)

        async def test() -> None:
            await flushed(tmp_path, checkpoint)
            of_b = tier("b")
            save = of_b.steps()[0]
            if isinstance(of_b, S3Tier):
                of_b._bucket.delete([of_b._key(directory_name(save), "node-00001.data")])
            else:
                Path(str(of_b.data_path(save, "node-00001.data"))).unlink()
            async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
                assert (await world.plan())["step"] == 10

        run(test)

    @pytest.mark.parametrize("how", ["unreadable", "cut off", "wire"])
    def test_a_step_that_could_not_be_read_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[RestoreLeader], server: S3Server, kind: str,
        how: str,
    ) -> None:  # fmt: skip
        """One that a wire has spoilt once is read again, and taken. No older step of a shared tier takes its place."""
        checkpoint, tier = place(kind, tmp_path, server)
        make, left = reads.reader, [1]

        def faulty(of: Tier, save: Any, at: Any) -> reads.Read:
            def read(start: int, into: memoryview) -> None:
                if save.step == 20 and how != "wire":
                    code = errno.EIO if how == "unreadable" else errno.ETIMEDOUT
                    raise OSError(code, os.strerror(code))
                make(of, save, at)(start, into)
                if save.step == 20 and left[0]:
                    left[0] -= 1
                    into[0] ^= 1

            return read

        async def test() -> None:
            await flushed(tmp_path, checkpoint)
            with monkeypatch.context() as patch:
                patch.setattr(reads, "reader", faulty)
                async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
                    if how == "wire" or kind == "nvme":
                        assert (await world.plan())["step"] == (20 if how == "wire" else 10)
                    else:
                        for worker in world.workers:
                            error = (await worker.request("plan"))["error"]
                            assert f"no memory holds a complete step, and step 20 of the {kind} tier" in error
                    await until(lambda: world.agents[0]._leads[0] in ended)
                    what = {problem["what"] for problem in world.monitors[0].seen("problem")}
                    assert what <= {"no restore agreed", "shard does not verify"}
            assert tier("a").quarantined() == tier("b").quarantined() == []
            assert [save.step for save in tier("b").steps()] == [20, 10]
            lose(tmp_path, "a", "b")
            async with World(tmp_path, ["a", "b"], 2, checkpoint) as world:
                assert (await world.plan())["step"] == 20
                assert await world.contents(2) == [content(rank, 20) for rank in range(2)]

        run(test)
