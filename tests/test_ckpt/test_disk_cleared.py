"""A node that leaves a run which goes on: the run's steps go from the node's disk, and nothing else does."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from crash_kit import Fuse, crashes
from tier_kit import WORLD, save_id, shard

from ckpt.agent.shards.node_disk import NodeDisk
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.nvme import DiskInUse, NvmeTier

DEADLINE_S = 60.0


def disk(root: Path, namespace: str = "ns") -> NvmeTier:
    return NvmeTier(root, namespace, node="n1")


def write(tier: NvmeTier, *saves: tuple[int, str], commit: bool = True) -> None:
    tier.prepare()
    for step, run_id in saves:
        save = save_id(step, run_id=run_id)
        places = tier.write_node(save, 0, [shard(save, rank) for rank in range(2)])
        if commit:
            tier.commit(save, WORLD, places)


def steps(tier: NvmeTier) -> list[tuple[int, str]]:
    return [(save.step, save.run_id) for save in tier.steps()]


def names(tier: NvmeTier) -> list[str]:
    return sorted(path.name for path in tier.folder.iterdir())


def test_what_a_run_has_written_goes_and_what_others_have_stays(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    write(tier, (10, "other"), (20, "run"), (30, "run"))
    write(tier, (40, "run"), commit=False)
    bad = Path(tier.quarantine(directory_name(save_id(20)), "a block does not match its checksum"))
    write(disk(tmp_path, "ns2"), (20, "run"), commit=False)
    gone = tier.remove_run("run")
    assert sorted(gone) == sorted(directory_name(save_id(step)) for step in (30, 40))
    assert steps(tier) == [(10, "other")] and directory_name(save_id(20)) in names(disk(tmp_path, "ns2"))
    assert names(tier) == sorted([bad.name, "holdfast.json", "owner.lock", directory_name(save_id(10, run_id="other"))])
    assert tier.remove_run("run") == []
    tier.occupy("the next run")  # the lock is free


def test_nothing_is_made_where_a_run_has_written_nothing(tmp_path: Path) -> None:
    assert disk(tmp_path / "nvme").remove_run("run") == []
    assert not (tmp_path / "nvme").exists()


def test_nothing_goes_while_an_agent_has_the_disk(tmp_path: Path) -> None:
    tier, agents = disk(tmp_path), disk(tmp_path)
    write(tier, (20, "run"))
    agents.occupy("run run, attempt 3")
    with pytest.raises(DiskInUse, match="attempt 3"):
        tier.remove_run("run")
    assert steps(tier) == [(20, "run")]


def test_the_removal_waits_for_an_agent_that_was_killed_and_has_not_closed_its_files(tmp_path: Path) -> None:
    tier, agents = disk(tmp_path), disk(tmp_path)
    write(tier, (20, "run"))
    agents.occupy("run run, attempt 3")
    with ThreadPoolExecutor(1) as pool:
        removal = pool.submit(tier.remove_run, "run", DEADLINE_S)
        with pytest.raises(TimeoutError):
            removal.result(timeout=0.2)
        write(agents, (30, "run"))  # until its end
        agents.leave()
        assert len(removal.result(timeout=DEADLINE_S)) == 2
    assert steps(tier) == []


def test_the_next_agent_waits_for_the_one_before_it_too(tmp_path: Path) -> None:
    agents, tiers = disk(tmp_path), {"nvme": disk(tmp_path)}
    agents.occupy("run run, attempt 3")

    async def test() -> None:
        scan = asyncio.create_task(NodeDisk(tiers).scan("run run, attempt 4", DEADLINE_S))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(scan), 0.2)
        agents.leave()
        assert await asyncio.wait_for(scan, DEADLINE_S) is None

    asyncio.run(test())


async def _clear(root: Path, fuse: Fuse) -> None:
    fuse.arm()
    disk(root).remove_run("run")


def test_a_removal_that_is_killed_leaves_whole_steps_alone_and_the_next_one_finishes_it(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    tier = disk(tmp_path / "before")
    write(tier, (10, "other"), (20, "run"), (30, "run"))
    for crash in crashes(_clear, tmp_path / "before", tmp_path):
        tier = disk(crash.root)
        for save in tier.steps():
            tier.read_manifest(save)
            assert (tier.folder / directory_name(save) / "node-00000.data").exists()
        assert (10, "other") in steps(tier)
        tier.remove_run("run")
        assert names(tier) == sorted(["holdfast.json", "owner.lock", directory_name(save_id(10, run_id="other"))])
