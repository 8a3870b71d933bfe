"""SIGKILL of all agents and workers before every single change of a file: what was promised is still there."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from agent_kit import DEADLINES, LINE, NAMESPACE, World, config, content, lose, run, until
from crash_kit import Crash, Fuse, Trainers, crashes

from ckpt.config import CheckpointConfig
from ckpt.format.line import NOBODY
from ckpt.format.manifest import NAME
from ckpt.format.shard_record import read_record, write_record
from ckpt.redundancy.parity_record import read_parity
from ckpt.tiers.posix import SharedTier

pytestmark = pytest.mark.faults  # some hundred runs; the moments that have names are in test_recover_killed.py

SCHEMES: dict[str, dict[str, Any]] = {"partner": {}, "xor": {"scheme": "xor"}, "rs": {"scheme": "rs", "parity": 2}}
NODES = ["a", "b", "c", "d", "e"]
KEEP = 2


CALM = replace(DEADLINES, beat_s=60)  # a claim that is renewed all the time would be a moment all the time

T = TypeVar("T")


def memory(scheme: str) -> CheckpointConfig:
    """Nothing below it."""
    return config(keep=KEEP, **SCHEMES[scheme])


def over_shared(root: Path, scheme: str) -> CheckpointConfig:
    """Step 10 is the last that goes to the shared directory."""
    return config(root / "shared", every_steps=10_000, **SCHEMES[scheme])


def instead(lost: str, nodes: list[str], by: str = "spare") -> list[str]:
    return [f"{by}-{node}" if node in lost else node for node in nodes]


def world_of(root: Path, nodes: list[str], attempt: int, checkpoint: CheckpointConfig) -> World:
    return World(root, nodes, attempt, checkpoint, deadlines=CALM)


def run_for(work: Callable[[], Awaitable[T]]) -> T:
    """What a coroutine returns."""
    answer: list[T] = []

    async def keep() -> None:
        answer.append(await work())

    run(keep)
    return answer[0]


async def saved(root: Path, nodes: list[str], checkpoint: CheckpointConfig) -> None:
    async with world_of(root, nodes, 0, checkpoint) as world:
        await world.save(10, 0, flush=True)
        await world.await_saves()
        await world.save(20, 1)


async def restored(root: Path, nodes: list[str], checkpoint: CheckpointConfig) -> dict[str, Any]:
    """The plan of a new attempt: every byte of it is right, and saving goes on."""
    async with world_of(root, nodes, 2, checkpoint) as world:
        trainers = Trainers(world, checkpoint.slots)
        plan = await trainers.load()
        assert await world.contents(len(nodes)) == [content(rank, plan["step"]) for rank in range(len(nodes))]
        for step in itertools.count(plan["step"] + 1):  # copies of what was restored may still come beside the first
            await trainers.save(step)
            if not any(beyond(checkpoint.slots, place.ram_dir) for place in world.places):
                return plan


def beyond(slots: int, ram_dir: Path) -> list[Path]:
    """Shards, copies and parity that lie in more than the usual slots."""
    paths = [path for kind in ("own", "copy", "parity") for path in ram_dir.glob(f"{kind}-*.data")]
    return [path for path in paths if int(path.stem.rpartition("-")[2]) >= slots]


def held(ram_dir: Path) -> set[int]:
    """The steps of which a node has what it should: its own shard, and copies or parity for others."""
    own, redundant = set(), set()
    for name in [path.stem for path in ram_dir.glob("*.json")]:
        with suppress(FileNotFoundError):  # it is just being replaced
            if name.startswith("parity"):
                redundant.add(read_parity(ram_dir, name).save.step)
            else:
                (own if name.startswith("own") else redundant).add(read_record(ram_dir, name).save.step)
    return own & redundant


# the memory tier: older steps make room, and what a rebuild has put beyond the slots goes


async def rebuild_and_save(scheme: str, root: Path, fuse: Fuse) -> None:
    nodes = NODES[:3]
    fuse.arm()
    async with world_of(root, nodes, 1, memory(scheme)) as world:
        trainers = Trainers(world, KEEP)
        await trainers.load()
        await until(lambda: all(20 in held(place.ram_dir) for place in world.places))
        assert beyond(KEEP, root / "b")
        for step in (50, 60):
            await trainers.save(step)
            fuse.tell(step)
        await until(lambda: not beyond(KEEP, root / "b"))


@pytest.mark.parametrize("scheme", ["partner", "xor"])
def test_no_committed_step_is_lost_while_older_ones_make_room_for_it_in_memory(tmp_path: Path, scheme: str) -> None:
    """Both slots of b hold saves that never became whole, so its shard of step 20 is made again in a third one.

    A node goes with the kill: b, and once a save has committed, any.
    """
    before, nodes = tmp_path / "before", NODES[:3]
    before.mkdir()
    run(lambda: saved(before, nodes, memory(scheme)))
    for name, step in (("own-0-0", 30), ("own-0-1", 40)):
        record = read_record(before / "b", name)
        write_record(before / "b", name, replace(record, save=replace(record.save, step=step)))
    seen = set()
    for crash in crashes(partial(rebuild_and_save, scheme), before, tmp_path):
        lost = nodes[crash.moment % 3] if crash.told else "b"
        lose(crash.root, lost)
        replaced = ["new" if node == lost else node for node in nodes]
        plan = run_for(lambda c=crash, n=replaced: restored(c.root, n, memory(scheme)))
        assert plan["step"] >= max(crash.told, 20) and plan["tier"] == "memory", crash
        seen.add(plan["step"])
    assert seen >= {20, 50}


# a rebuild from parity, and a second failure in the middle of it


async def rebuild(scheme: str, lost: str, nodes: list[str], root: Path, fuse: Fuse) -> None:
    fuse.arm()
    async with world_of(root, instead(lost, nodes), 1, over_shared(root, scheme)) as world:
        await world.plan()
        await until(lambda: all(20 in held(place.ram_dir) for place in world.places))


def after_a_second_failure(scheme: str, lost: str, nodes: list[str], crash: Crash, another: bool) -> dict[str, Any]:
    """The nodes that were being rebuilt are lost again, and another one with them."""
    survivors = [node for node in nodes if node not in lost]
    gone = survivors[crash.moment % len(survivors)] if another else ""
    for node in instead(lost, nodes):
        if node not in nodes or node == gone:
            shutil.rmtree(crash.root / node, ignore_errors=True)
    again = instead(lost + gone, nodes, by="new")
    return run_for(lambda: restored(crash.root, again, over_shared(crash.root, scheme)))


@pytest.mark.parametrize(
    ("scheme", "lost", "another"), [("xor", "b", False), ("rs", "bd", False), ("rs", "c", True)], ids=str
)
def test_a_rebuild_killed_anywhere_is_made_anew_from_what_is_left(
    tmp_path: Path, scheme: str, lost: str, another: bool
) -> None:
    """With two parities, that is so when a second node is lost in the middle of it, too."""
    nodes, before = NODES[:4] if scheme == "xor" else NODES, tmp_path / "before"
    before.mkdir()
    run(lambda: saved(before, nodes, over_shared(before, scheme)))
    lose(before, *lost)
    for crash in crashes(partial(rebuild, scheme, lost, nodes), before, tmp_path):
        plan = after_a_second_failure(scheme, lost, nodes, crash, another)
        assert (plan["step"], plan["tier"], plan["skipped"]) == (20, "memory", []), crash


def test_a_second_node_lost_in_a_rebuild_from_one_parity_leaves_the_step_below_and_says_so(tmp_path: Path) -> None:
    nodes, before = NODES[:4], tmp_path / "before"
    before.mkdir()
    run(lambda: saved(before, nodes, over_shared(before, "xor")))
    lose(before, "b")
    for crash in crashes(partial(rebuild, "xor", "b", nodes), before, tmp_path):
        plan = after_a_second_failure("xor", "b", nodes, crash, another=True)
        assert (plan["step"], plan["tier"]) == (10, "shared"), crash
        assert [skipped["step"] for skipped in plan["skipped"]] == [20], crash
        assert "no rebuild from the parity of a, b, c, d: stripe" in plan["skipped"][0]["reason"], crash


# nodes' disks and the shared directory: written, tidied, read


def below(root: Path, tier: str) -> CheckpointConfig:
    if tier == "shared":
        return config(root / "shared", scheme="none")
    return config(scheme="none", nvme={"path": str(root / "nvme"), "every_steps": 10, "keep": KEEP})


async def flushed(tier: str, attempt: int, steps: tuple[int, ...], root: Path, fuse: Fuse | None = None) -> int:
    """A new attempt that saves, each step to a lower tier and to the end of what it makes superfluous there."""
    if fuse:
        fuse.arm()
    checkpoint = below(root, tier)
    async with world_of(root, NODES[:3], attempt, checkpoint) as world:
        trainers = Trainers(world, checkpoint.slots)
        plan = await trainers.load()
        if attempt:
            assert plan["tier"] == tier
            assert await world.contents(3) == [content(rank, plan["step"]) for rank in range(3)]
        for step in steps:
            await trainers.save(step)
            await world.monitors[0].event("commit", tier=tier, step=step)
            if fuse:
                fuse.tell(step)
            await world.await_saves()
            await until(lambda: len(steps_in(root, tier)) <= KEEP)
        return int(plan["step"] or 0)


def steps_in(root: Path, tier: str) -> set[int]:
    """Of which any file is left in a tier, on its way out as well."""
    folders = [root / tier / NAMESPACE] if tier == "shared" else [root / tier / n / NAMESPACE for n in NODES[:3]]
    names = [path.name for folder in folders for path in folder.iterdir() if "step-" in path.name]
    return {int(name.partition("step-")[2].partition(".")[0]) for name in names}


@pytest.mark.parametrize("tier", ["nvme", "shared"])
def test_a_lower_tier_has_its_newest_step_wherever_it_is_written_tidied_or_read(tmp_path: Path, tier: str) -> None:
    """All memory is lost with the kill; it was lost before as well, so that the first thing is to read."""
    before, seen = tmp_path / "before", set()
    before.mkdir()
    run(lambda: flushed(tier, 0, (10, 20), before))
    lose(before, *NODES[:3])
    for crash in crashes(partial(flushed, tier, 1, (30,)), before, tmp_path):
        for node in NODES[:3]:
            shutil.rmtree(crash.root / node, ignore_errors=True)
        step = run_for(lambda c=crash: flushed(tier, 2, (50,), c.root))
        assert step >= max(crash.told, 20), crash
        seen.add(step)
    assert seen >= {20, 30}


# a script that goes back


BACK = LINE.fork(10, number=2, began_s=0.0, seed="back", owner=NOBODY)


async def gone_back(tier: str, root: Path, fuse: Fuse) -> None:
    """Begins a line after step 10, and brings its first step to a lower tier."""
    fuse.arm()
    async with world_of(root, NODES[:3], 1, below(root, tier)) as world:
        trainers = Trainers(world, KEEP)
        assert (await trainers.load())["step"] == 20
        await trainers.save(30, BACK)
        await world.monitors[0].event("commit", tier=tier, step=30)
        fuse.tell(30)
        await world.await_saves()


@pytest.mark.parametrize("tier", ["nvme", "shared"])
def test_a_line_that_begins_has_its_first_step_or_the_step_that_it_leaves_is_restored(
    tmp_path: Path, tier: str
) -> None:
    """All memory is lost with the kill. No step of the line that is left is ever removed.

    If only some nodes' disks have the first step, the step after which the line begins is restored. If none has it,
    nothing tells of the line.
    """
    before, seen = tmp_path / "before", set()
    before.mkdir()
    run(lambda: flushed(tier, 0, (10, 20), before))
    lose(before, *NODES[:3])
    for crash in crashes(partial(gone_back, tier), before, tmp_path):
        for node in NODES[:3]:
            shutil.rmtree(crash.root / node, ignore_errors=True)
        assert steps_in(crash.root, tier) >= {10, 20}, crash
        there = len(list(crash.root.glob(f"{tier}/**/step-0000000030.*/{NAME}")))
        step = run_for(lambda c=crash: flushed(tier, 2, (), c.root))
        assert step == (30 if there == (1 if tier == "shared" else 3) else 10 if there else 20), crash
        assert there or not crash.told, crash
        seen.add(step)
    assert seen == ({20, 30} if tier == "shared" else {10, 20, 30})


async def forked_in_memory(root: Path, fuse: Fuse) -> None:
    """Begins a line after step 10, and saves its first step to no lower tier."""
    fuse.arm()
    async with world_of(root, NODES[:2], 1, over_shared(root, "partner")) as world:
        trainers = Trainers(world, KEEP)
        assert (await trainers.load())["step"] == 20
        await trainers.save(30, BACK)
        fuse.tell(30)


def test_a_line_that_begins_in_memory_has_its_first_step_or_the_step_after_which_it_begins(tmp_path: Path) -> None:
    """No memory is lost with the kill. The line is known from the first shard that is published."""
    before, seen = tmp_path / "before", set()
    before.mkdir()
    run(lambda: saved(before, NODES[:2], over_shared(before, "partner")))
    for crash in crashes(forked_in_memory, before, tmp_path):
        plan = run_for(lambda c=crash: planned(c.root, over_shared(c.root, "partner")))
        assert plan["step"] == 30 if crash.told else plan["step"] in (10, 20, 30), crash
        assert (plan["step"] == 10) == any(skipped["step"] == 30 for skipped in plan["skipped"]), crash
        seen.add(plan["step"])
    assert seen == {10, 20, 30}


async def planned(root: Path, checkpoint: CheckpointConfig) -> dict[str, Any]:
    async with world_of(root, NODES[:2], 2, checkpoint) as world:
        return await world.plan()


async def rolled_back(root: Path, fuse: Fuse) -> None:
    tier = SharedTier(root / "shared", NAMESPACE)
    fuse.arm()
    tier.begin_line(BACK)
    fuse.tell(10)
    tier.begin_line(BACK)  # once more


def test_a_rollback_that_is_killed_anywhere_has_begun_or_has_not(tmp_path: Path) -> None:
    before, seen = tmp_path / "before", set()
    before.mkdir()
    run(lambda: flushed("shared", 0, (10, 20), before))
    lose(before, *NODES[:3])
    for crash in crashes(rolled_back, before, tmp_path):
        lines = SharedTier(crash.root / "shared", NAMESPACE).lines()
        step = run_for(lambda c=crash: flushed("shared", 2, (), c.root))
        assert step == (10 if lines else 20) and lines in ([], [BACK]), crash
        assert lines or not crash.told, crash
        seen.add(step)
    assert seen == {10, 20}
