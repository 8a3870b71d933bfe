"""However often saves fail, flushes are cut off and agents are replaced: nothing of it stays behind."""

from __future__ import annotations

import asyncio
import errno
import gc
import itertools
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import waiting
from agent_kit import DEADLINES, LINE, World, config, content, lose, run, until
from trainer_kit import Node, settle

from ckpt.tiers.posix import SharedTier
from ckpt.timeouts import AgentDeadlines

WARM, TIMES, ROUNDS = 3, 20, 3


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """What a process and its memory directories hold at one moment."""

    descriptors: tuple[str, ...]  # what each is of
    threads: int
    tasks: int
    pid_files: int
    files: tuple[tuple[str, int], ...]  # names and bytes

    def beyond(self, other: Footprint) -> dict[str, object]:
        """What is held more than `other` holds, which may have had something that was just ending."""
        found: dict[str, object] = {}
        if len(self.descriptors) > len(other.descriptors):
            found["descriptors"] = Counter(self.descriptors) - Counter(other.descriptors)
        for name in ("threads", "tasks", "pid_files"):
            if getattr(self, name) > getattr(other, name):
                found[name] = (getattr(self, name), getattr(other, name))
        if files := set(self.files) - set(other.files):
            found["files"] = (files, other.files)
        return found


def footprint(*ram_dirs: Path) -> Footprint:
    """This process's."""
    gc.collect()
    tasks = 0
    with suppress(RuntimeError):  # no loop runs
        tasks = len(asyncio.all_tasks())
    names = [thread.name for thread in threading.enumerate()]
    files = [path for ram_dir in ram_dirs for path in ram_dir.iterdir() if path.suffix not in (".json", ".pid")]
    pid_files = sum(len(list(ram_dir.glob("*.pid"))) for ram_dir in ram_dirs)  # each has a name of its own
    return Footprint(
        descriptors=descriptors(),
        threads=sum(not name.startswith("asyncio_") for name in names),  # a pool, which stays
        tasks=tasks,
        pid_files=pid_files,
        files=tuple(sorted((f"{path.parent.name}/{path.name}", path.stat().st_size) for path in files)),
    )


def descriptors() -> tuple[str, ...]:
    """What this process's descriptors are of."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the listing's own
            found.append(re.sub(r"\d+", "N", os.readlink(f"/proc/self/fd/{number}")))
    return tuple(sorted(found))


# saves that fail, and flushes that are cut off: all agents in this process


def no_memory_for_redundancy(world: World, patch: pytest.MonkeyPatch) -> None:
    allocate = os.posix_fallocate

    def fallocate(descriptor: int, start: int, nbytes: int) -> None:
        if "own-" not in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, start, nbytes)

    patch.setattr(os, "posix_fallocate", fallocate)


def damage_on_the_wire(world: World, patch: pytest.MonkeyPatch) -> None:
    for transport in world.fake.transports:
        real = transport.send_range

        def damaging(to: int, tag: int, data: memoryview, real: Any = real) -> Any:
            return real(to, tag, memoryview(bytes(byte ^ 1 for byte in data)))

        patch.setattr(transport, "send_range", damaging)


def one_rank_cannot_save(world: World, patch: pytest.MonkeyPatch) -> None:
    last = world.workers[-1]

    def skip(step: int, slot: int, data: bytes) -> None:
        last.send(op="drop_shard", step=step, rank=last.rank, descent=LINE.to_json(), reason="no memory")

    patch.setattr(last, "save", skip)


def nothing(world: World, patch: pytest.MonkeyPatch) -> None:
    """They commit."""


@pytest.mark.parametrize(
    ("fail", "scheme"),
    [
        *itertools.product([nothing, no_memory_for_redundancy, one_rank_cannot_save], ["partner", "xor"]),
        (damage_on_the_wire, "partner"),  # parity is checked against the records when it is used
    ],
)
def test_saves_that_fail_or_come_about_leave_nothing_behind(tmp_path: Path, fail: Any, scheme: str) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b", "c"], 0, config(scheme=scheme)) as world:
            ram_dirs = [place.ram_dir for place in world.places]

            async def failed(step: int) -> None:
                with pytest.MonkeyPatch.context() as patch:
                    fail(world, patch)
                    for worker in world.workers:
                        worker.save(step, step % 2, content(worker.rank, step, 9000))  # memory has to grow
                    for worker in world.workers:
                        await worker.event("committed" if fail is nothing else "dropped", step=step)

            await world.save(1, 0)
            await world.save(2, 1)
            step = await stays_as_it_is(failed, ram_dirs)
            await world.save(step, step % 2)
            await world.save(step + 1, (step + 1) % 2)
            assert all(len(agent._saving._in_flight) == 0 for agent in world.agents)

    run(test)


async def stays_as_it_is(work: Callable[[int], Awaitable[None]], ram_dirs: list[Path]) -> int:
    """As `leaves_nothing`, for work on the event loop. Returns the number of the next step."""
    steps = itertools.count(3)
    for _ in range(WARM):
        await work(next(steps))
    for _ in range(ROUNDS):
        before = footprint(*ram_dirs)
        for _ in range(TIMES):
            await work(next(steps))
        deadline = time.monotonic() + 10
        while footprint(*ram_dirs).beyond(before) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)  # in no task of its own, which would count
        if not (left := footprint(*ram_dirs).beyond(before)):
            return next(steps)
    pytest.fail(f"each of {ROUNDS} rounds of {TIMES} left something, the last one {left}")


def full_disk(patch: pytest.MonkeyPatch, over: threading.Event) -> None:
    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "pwrite", pwrite)


def stuck_disk(patch: pytest.MonkeyPatch, over: threading.Event) -> None:
    """Until long after the deadline: each flush is cut off, and its thread ends by itself."""
    write = SharedTier.write_node

    def stuck(*args: Any) -> Any:
        over.wait(30)
        return write(*args)

    patch.setattr(SharedTier, "write_node", stuck)


@pytest.mark.parametrize("fail", [full_disk, stuck_disk])
def test_flushes_that_fail_or_are_cut_off_leave_nothing_behind(tmp_path: Path, fail: Any) -> None:
    over = threading.Event()

    async def test() -> None:
        deadlines = AgentDeadlines(flush_s=0.5, beat_s=60)
        async with World(tmp_path, ["a"], 0, config(tmp_path / "shared", every_steps=1), deadlines=deadlines) as world:
            (worker,) = world.workers

            async def failed(step: int) -> None:
                over.clear()
                with pytest.MonkeyPatch.context() as patch:
                    fail(patch, over)
                    await world.save(step, step % 2)
                    assert not (await worker.event("flushed", step=step))["reached"]
                over.set()
                await until(lambda: not world.agents[0]._flush._writing)

            ram_dirs = [world.places[0].ram_dir]
            for step in itertools.count(await stays_as_it_is(failed, ram_dirs)):
                await world.save(step, step % 2)
                if (await worker.event("flushed", step=step))["reached"]:
                    break
            # What came to nothing goes with the first commit.
            await until(lambda: len(list((tmp_path / "shared" / "test").glob("step-*"))) == 1)

    try:
        run(test)
    finally:
        over.set()


# agents that are replaced: processes


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


def test_an_agent_that_is_killed_and_replaced_time_and_again_leaves_nothing_behind(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"x": np.zeros(1000)}
    generations = itertools.count(1)
    with node.start() as ckpt:

        def replace() -> None:
            generation = next(generations)
            ckpt.save(2 * generation, state)  # in flight, maybe, as the agent is killed
            node.start_agent(generation)
            waiting.until(lambda: caplog.text.count("saving goes on") == generation, "the new agent")
            ckpt.save(2 * generation + 1, state)
            settle(ckpt)

        leaves_nothing(replace, node.ram_dir)


def test_attempt_after_attempt_leaves_nothing_behind(node: Node) -> None:
    state = {"x": np.zeros(1000)}
    attempts = itertools.count()

    def attempt() -> None:
        number = next(attempts)
        with node.start() as ckpt:
            assert (ckpt.load(state) or 0) == number
            ckpt.save(number + 1, state)
        node.stop()
        (node.ram_dir / f"agent-{number}.sock").unlink()  # the only one

    leaves_nothing(attempt, node.ram_dir)


def leaves_nothing(work: Callable[[], None], ram_dir: Path) -> None:
    """Works until a round has left nothing behind.

    What the work leaves grows in every round. What another thread of this process has opened meanwhile, one that an
    earlier test has left say, does not. A thread that is just ending with its descriptor is waited for.
    """
    for _ in range(WARM):
        work()
    for _ in range(ROUNDS):
        before = footprint(ram_dir)
        for _ in range(TIMES):
            work()
        with suppress(AssertionError):
            waiting.until(lambda then=before: not footprint(ram_dir).beyond(then), deadline_s=10)
        if not (left := footprint(ram_dir).beyond(before)):
            return
    pytest.fail(f"each of {ROUNDS} rounds of {TIMES} left something, the last one {left}")


# a state that grows and shrinks in mid-run


@pytest.mark.parametrize("scheme", ["partner", "xor"])
def test_shards_that_grow_and_shrink_in_mid_run_come_back_whole(tmp_path: Path, scheme: str) -> None:
    """Slots, copies and parity of another length lie in the files of those before, mapped anew where they grew."""

    async def test() -> None:
        sizes = (100, 5000, 9_000_000, 100, 9_100_000, 40)
        async with World(tmp_path, ["a", "b", "c"], 0, config(scheme=scheme), deadlines=DEADLINES) as world:
            for step, nbytes in enumerate(sizes, start=1):
                for worker in world.workers:
                    worker.save(step, step % 2, content(worker.rank, step, nbytes))
                for worker in world.workers:
                    await worker.event("committed", step=step)
                await world.await_saves()
                keep = tmp_path / f"after-{step}"
                keep.mkdir()
                for place in world.places:
                    copy_files(place.ram_dir, keep / place.node)
        for step, nbytes in enumerate(sizes, start=1):
            lose(tmp_path / f"after-{step}", "b")
            async with World(tmp_path / f"after-{step}", ["a", "x", "c"], 1, config(scheme=scheme)) as world:
                assert (await world.plan())["step"] == step
                assert await world.contents(3) == [content(rank, step, nbytes) for rank in range(3)]

    run(test)


def copy_files(source: Path, target: Path) -> None:
    """All but the socket."""
    target.mkdir(mode=0o700)
    for path in source.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
