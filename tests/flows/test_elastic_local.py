"""A job that grows and shrinks on the local cluster as `holdfast scale` asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from broken_job import SCRIPT
from main_job import Event, Watch
from s3_kit import s3_server
from tier_reads import TierReads

from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.reads import reader, verify
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.tier import Tier
from launcher import Executor, JobSpec
from launcher.clusters.local.cluster import kill_node
from launcher.job.registry import find_job
from launcher.job.run_id import local_run_id
from launcher.runner.memory import memory_dir
from launcher.submission.job_control import cancel_job, scale_job

pytestmark = pytest.mark.long(seconds=50)

SIZE_S = 90.0


class LocalJob:
    """An elastic job of two to four nodes, on two of them at first.

    Args:
        folder: for the job's folder, and its tiers.
        tiers: of its checkpoint, besides memory and the nodes' disks.
    """

    def __init__(self, folder: Path, **tiers: dict[str, Any]) -> None:
        self.disks = folder / "nvme"
        checkpoint = {
            "namespace": "local",
            "memory": {"every_steps": 10, "keep": 2},
            "redundancy": {"scheme": "partner"},
            "nvme": {"path": str(self.disks), "every_steps": 10},
        }
        job = {
            "name": "local",
            "script": str(SCRIPT),
            "nodes": 2,
            "elastic": {"min_nodes": 2, "max_nodes": 4, "scaling_timeout_s": 0.5, "scale_up_snooze_s": 1},
            "checkpoint": checkpoint | tiers,
        }
        self.submitted = Executor(folder=folder / "%j", cluster="local").submit(JobSpec.from_mapping(job, folder))
        self.folder = self.submitted.paths.folder
        self.watch = Watch(self.folder)

    def scale(self, nodes: int) -> None:
        scale_job(find_job(str(self.folder)), nodes)

    def trains_on(self, nodes: int) -> Event:
        """Waits until the newest attempt has that size and has committed a step of its own; returns its start."""

        def found() -> Event | None:
            events = self.watch.events()
            starts = [index for index, event in enumerate(events) if event["event"] == "attempt_start"]
            newest = events[starts[-1] :] if starts else []
            names = [event["event"] for event in newest]
            trains = "first_step" in names and "commit" in names[names.index("first_step") :]
            return newest[0] if trains and len(newest[0]["nodes"]) == nodes else None

        return self.watch.until(found, SIZE_S, f"attempt that trains on {nodes} nodes")

    def on_disk(self, node: str) -> list[int]:
        """The steps of which a node's disk has its part."""
        return [save.step for save in NvmeTier(self.disks, "local", node=node).steps()]

    def keeps_nothing(self, node: str) -> None:
        """Waits until a node's memory and disk have nothing of the job."""
        memory = memory_dir(local_run_id(self.folder), node)
        self.watch.until(lambda: None if memory.exists() else True, SIZE_S, f"end of {node}'s memory")
        self.watch.until(lambda: None if self.on_disk(node) else True, SIZE_S, f"end of {node}'s steps")

    def finish(self, reference: dict[int, str]) -> None:
        """Has it end; its weights are those of a run that nothing interrupts, as its gradients are whole numbers."""
        (self.folder / "finish").touch()
        assert self.submitted.result()["name"] == "done", self.watch.story()
        digests: dict[int, str] = {}
        for log in (self.folder / "log").glob("attempt-*/rank-0.log"):
            lines = [line.split() for line in log.read_text().splitlines() if " digest " in line]
            digests |= {int(step): digest for _, step, _, digest in lines}
        assert digests and all(reference[step] == digest for step, digest in digests.items()), self.watch.story()
        assert not memory_dir(local_run_id(self.folder)).exists()


@contextmanager
def running(job: LocalJob) -> Iterator[LocalJob]:
    try:
        yield job
    finally:
        if not job.watch.events("job_end"):
            cancel_job(find_job(str(job.folder)))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LocalJob]:
    with running(LocalJob(tmp_path)) as job:
        yield job


def read_newest(tier: Tier) -> None:
    """As a restore would, all of it."""
    save = tier.steps()[0]
    for place in tier.read_manifest(save).shards:
        verify(reader(tier, save, place), place)


def test_its_state_goes_from_memory_to_memory_and_nothing_is_read_below(
    tmp_path: Path, steady_digests: dict[int, str]
) -> None:
    """Neither as it grows nor as it shrinks, though the shared directory and the bucket have steps to read. Nodes that
    leave keep nothing of it; those that stay keep what is on their disks.
    """
    shared, section = tmp_path / "shared", {"every_steps": 20, "keep": 2}
    shared.mkdir()
    with s3_server(tmp_path / "s3") as s3:
        reads = TierReads(mapped=shared, served=s3.root)
        tiers = {"shared": section | {"path": str(shared)}, "s3": section | s3.section()}
        with running(LocalJob(tmp_path, **tiers)) as job:
            trains = job.trains_on(2)
            for nodes in (4, 2, 3):
                for tier in ("shared", "s3", "nvme"):
                    job.watch.wait_for("commit", SIZE_S, tier=tier, attempt=trains["attempt"])
                before = trains["nodes"]
                assert all(job.on_disk(node) for node in before)
                job.scale(nodes)
                trains = job.trains_on(nodes)
                for node in {*before} - {*trains["nodes"]}:
                    job.keeps_nothing(node)
            job.watch.wait_for("commit", SIZE_S, tier="nvme", attempt=trains["attempt"])
            assert reads.files() == [], job.watch.story()
            ends = job.watch.events("attempt_end")
            # Of the two boosters that four nodes need, one may come later, in a resize of its own.
            assert len(ends) in (3, 4) and {event["outcome"] for event in ends} == {"resized"}, job.watch.story()
            restores = [(event["step"], event["tier"]) for event in job.watch.events("restore")[1:]]
            assert restores == [(event["step"], "memory") for event in ends], job.watch.story()
            assert not job.watch.events("fault") and not job.watch.events("backoff"), job.watch.story()
            job.finish(steady_digests)
            assert all(job.on_disk(node) for node in trains["nodes"])  # the job has ended: what it left there stays
        for tier in (SharedTier(shared, "local"), S3Tier(s3.section()["url"], "local", s3.options)):
            before_read = len(reads.files())
            read_newest(tier)
            job.watch.until(lambda seen=before_read: len(reads.files()) > seen or None, 10, "read that is counted")


def test_a_booster_that_is_lost_costs_what_a_lost_node_costs_and_the_next_one_comes(
    job: LocalJob, steady_digests: dict[int, str]
) -> None:
    job.trains_on(2)
    job.scale(3)
    lost = job.trains_on(3)["nodes"][2]
    kill_node(job.folder, lost)
    fault = job.watch.wait_for("fault", SIZE_S)
    assert (fault["kind"], fault["node"]) == ("node_lost", lost), job.watch.story()
    job.watch.wait_for("attempt_end", SIZE_S, outcome="resized", attempt=lambda number: number > 1)
    assert lost not in job.trains_on(3)["nodes"], job.watch.story()
    job.finish(steady_digests)


def test_a_slow_lower_tier_does_not_hold_up_a_resize(tmp_path: Path) -> None:
    """The ranks end once the agreed step is in memory. The next attempt continues to write it."""
    shared = tmp_path / "shared"
    shared.mkdir()
    slow = {"path": str(shared), "every_steps": 20, "rate_limit_bytes_s": 50}  # a step takes minutes
    with running(LocalJob(tmp_path, shared=slow)) as job:
        job.trains_on(2)
        job.scale(3)
        grown = job.trains_on(3)
        (end,) = job.watch.events("attempt_end")
        assert end["outcome"] == "resized" and not job.watch.events("fault"), job.watch.story()
        (restore,) = (event for event in job.watch.events("restore") if event["attempt"] == grown["attempt"])
        assert (restore["step"], restore["tier"]) == (end["step"], "memory"), job.watch.story()
        assert not [event for event in job.watch.events("commit") if event["tier"] == "shared"]
        late = [event for event in job.watch.events("problem") if event["what"].startswith("not all ranks")]
        assert not late, job.watch.story()
