"""Storage that is full, failing, read-only, another's or off in time: nothing that was saved is lost."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_kit import DEADLINES, World, config, content, lose, run, until

from ckpt.errors import NamespaceError
from ckpt.format import atomic_files as files
from ckpt.tiers import posix
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier, check_shared

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
LARGE = 400_000


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    path = tmp_path / "tiny"
    path.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


def steps(path: Path) -> list[int]:
    return [save.step for save in SharedTier(path, "test").steps()]


async def save(world: World, step: int, slot: int, nbytes: int) -> None:
    for worker in world.workers:
        worker.save(step, slot, content(worker.rank, step, nbytes))
    for worker in world.workers:
        await worker.event("committed", step=step)
    await world.await_saves()


@needs_root
def test_a_full_tier_costs_the_step_and_nothing_older_and_is_used_again_when_there_is_room(
    tmp_path: Path, tiny: Path
) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config(tiny)) as world:
            await save(world, 10, 0, 100_000)
            await save(world, 20, 1, 3 * LARGE)
            problem = await world.monitors[0].event("problem", step=20, failed="shared")
            assert "No space left on device" in problem["detail"]
            assert steps(tiny) == [10] and not list(tiny.glob("test/step-*/.*.tmp"))
            await save(world, 30, 2, 100_000)
            assert steps(tiny) == [30, 10]
        lose(tmp_path, "a", "b")
        async with World(tmp_path, ["a", "b"], 1, config(tiny)) as world:
            assert (await world.plan())["step"] == 30
            assert await world.contents(2) == [content(rank, 30, 100_000) for rank in range(2)]

    run(test)


@needs_root
def test_a_full_memory_drops_the_save_and_the_one_before_survives_the_nodes_loss(tmp_path: Path, tiny: Path) -> None:
    """Node "tiny" holds its own shard and its partner's copy; the third such pair no longer fits."""

    async def test() -> None:
        async with World(tmp_path, ["a", "tiny"], 0, config()) as world:
            await save(world, 10, 0, 200_000)
            world.workers[0].save(20, 1, content(0, 20, 3 * LARGE))
            world.workers[1].save(20, 1, content(1, 20, 200_000))
            for worker in world.workers:
                dropped = await worker.event("dropped", step=20)
                assert "node tiny" in dropped["reason"] and "No space left on device" in dropped["reason"]
            await save(world, 30, 1, 200_000)
        lose(tmp_path, "a")
        async with World(tmp_path, ["x", "tiny"], 1, config()) as world:
            assert (await world.plan())["step"] == 30
            assert await world.contents(2) == [content(rank, 30, 200_000) for rank in range(2)]

    run(test)


@needs_root
def test_a_tier_turned_read_only_gives_what_it_has_and_takes_nothing(tmp_path: Path, tiny: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a"], 0, config(tiny)) as world:
            await save(world, 10, 0, 5000)
            subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
            await save(world, 20, 1, 5000)
            problem = await world.monitors[0].event("problem", step=20, failed="shared")
            assert f"{tiny}/test: is not writable" in problem["detail"]
        lose(tmp_path, "a")
        async with World(tmp_path, ["b"], 1, config(tiny)) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (10, "shared")
            await save(world, 30, 0, 5000)

    run(test)


@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
def test_a_disk_that_fails_in_the_middle_costs_the_step_and_nothing_older(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The calls of the tier and of durable_write fail, as a dying disk has them fail, while step 20 is on its way."""
    real, failing = getattr(os, call), [False]

    def faulty(*args: object, **kwargs: object) -> object:
        where = os.readlink(f"/proc/self/fd/{args[0]}") if isinstance(args[0], int) else os.path.realpath(str(args[0]))
        if failing[0] and "/shared/" in where:
            raise OSError(errno.EIO, os.strerror(errno.EIO), where)
        return real(*args, **kwargs)

    for module in (posix, files):
        monkeypatch.setattr(module.os, call, faulty)

    async def test() -> None:
        shared = tmp_path / "shared"
        async with World(tmp_path, ["a", "b"], 0, config(shared)) as world:
            await save(world, 10, 0, 5000)
            failing[0] = True
            await save(world, 20, 1, 5000)
            problem = await world.monitors[0].event("problem", step=20, failed="shared")
            assert "Input/output error" in problem["detail"]
            failing[0] = False
            assert steps(shared) == [10]
            await save(world, 30, 2, 5000)
            await until(lambda: steps(shared) == [30, 10])

    run(test)


def test_no_clock_of_the_wall_decides_what_is_newest_or_what_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It jumps a year back and ten ahead between attempts: the later attempt's save of a step is the newer."""
    clock, shift = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: clock() + shift[0])
    year = 365 * 86400.0

    async def test() -> None:
        shared = tmp_path / "shared"
        async with World(tmp_path, ["a"], 0, config(shared)) as world:
            for slot, step in enumerate((10, 20)):
                await save(world, step, slot, 5000)
        lose(tmp_path, "a")
        for attempt, shift[0] in ((1, -year), (3, 10 * year), (5, -year)):
            async with World(tmp_path, ["a"], attempt, config(shared)) as world:
                assert (await world.plan())["step"] == 20
                world.workers[0].save(20, 0, again := content(0, 20 + attempt))
                await world.workers[0].event("committed", step=20)
                await world.await_saves()
            lose(tmp_path, "a")
            async with World(tmp_path, ["a"], attempt + 1, config(shared)) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"]) == (20, "shared")
                assert (await world.contents(1))[0] == again

    run(test)


@needs_root
def test_an_empty_folder_planted_by_another_user_is_refused_before_it_is_marked(tmp_path: Path) -> None:
    planted = tmp_path / "shared" / "test"
    planted.mkdir(parents=True)
    planted.chmod(0o777)
    os.chown(planted, 12345, -1)

    async def test() -> None:
        with pytest.raises(NamespaceError, match="belongs to uid 12345"):
            check_shared(planted.parent, "test")
        async with World(tmp_path, ["a"], 0, config(planted.parent)) as world:
            problem = await world.monitors[0].event("problem", what="nothing can be saved to the shared tier")
            assert "shared/test: belongs to uid 12345" in problem["detail"]
            assert "belongs to uid 12345" in (await world.workers[0].request("plan"))["error"]
        assert not list(planted.iterdir())

    run(test)


@needs_root
def test_a_planted_folder_gets_no_claim_later_and_is_used_once_it_is_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = tmp_path / "shared" / "test"
    planted.mkdir(parents=True)
    planted.chmod(0o777)
    os.chown(planted, 12345, -1)
    prepared: list[str] = []
    prepare = SharedTier.prepare

    def counted(tier: SharedTier) -> float:
        prepared.append(tier.where)
        return prepare(tier)

    monkeypatch.setattr(SharedTier, "prepare", counted)

    async def test() -> None:
        async with World(tmp_path, ["a"], 0, config(planted.parent)) as world:
            await world.monitors[0].event("problem", what="nothing can be saved to the shared tier")
            world.workers[0].save(10, 0, content(0, 10))
            await world.workers[0].event("committed", step=10)
            refused = await world.monitors[0].event("problem", what="flush to the shared tier failed")
            assert "belongs to uid 12345" in refused["detail"]
            await until(lambda: len(prepared) > 3)  # the claim is renewed again and again
            assert not list(planted.iterdir())
            os.chown(planted, os.getuid(), -1)
            await until((planted / "owner.json").exists)
            world.workers[0].save(20, 1, content(0, 20))
            await world.workers[0].event("committed", step=20)
            await world.await_saves()
        assert [save.step for save in SharedTier(planted.parent, "test").steps()] == [20]

    run(test)


@needs_root
def test_a_folder_of_another_user_is_refused_by_name_and_nothing_in_it_is_restored(tmp_path: Path) -> None:
    """Whoever may write above it can have made it, with a mark that says whatever he likes."""

    async def test() -> None:
        shared = tmp_path / "shared"
        async with World(tmp_path, ["a"], 0, config(shared)) as world:
            await save(world, 10, 0, 5000)
        lose(tmp_path, "a")
        os.chown(shared / "test", 12345, -1)
        with pytest.raises(NamespaceError, match="belongs to uid 12345"):
            check_shared(shared, "test")
        async with World(tmp_path, ["a"], 1, config(shared)) as world:
            error = (await world.workers[0].request("plan"))["error"]
            assert "shared/test: belongs to uid 12345" in error

    run(test)


@pytest.mark.parametrize("call", ["catalog", "occupy", "read"])
def test_a_nodes_disk_that_hangs_delays_a_restore_and_does_not_prevent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A disk that hangs cannot be made here: a call that never returns stands for it."""
    real: Callable[..., Any] = getattr(NvmeTier, call)
    checkpoint = config(nvme={"path": str(tmp_path / "nvme"), "every_steps": 20})
    deadlines = replace(DEADLINES, answer_s=2.0, verify_s=1.0)
    is_hung = threading.Event()

    def hung(self: NvmeTier, *args: Any) -> Any:
        if self.node == "b":
            is_hung.set()
            threading.Event().wait()
        return real(self, *args)

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
            await world.save(20, 0)
            await world.await_saves()
            await world.save(30, 1)
        if call == "read":  # only the disks have the newest step that is whole
            lose(tmp_path, "a", "b")
        monkeypatch.setattr(NvmeTier, call, hung)
        async with World(tmp_path, ["a", "b"], 1, checkpoint, deadlines=deadlines) as world:
            if call == "read":
                error = (await world.workers[0].request("plan"))["error"]
                assert "none can be restored: step 20: rank 1 of 2: no node's memory holds a shard" in error
            else:
                assert (await world.plan())["step"] == 30
                problem = await world.monitors[1].event("problem", what="this node's disk cannot be read")
                assert problem["detail"] == "nvme tier: no answer within 0.8 s"
            assert is_hung.is_set()

    run(test)
