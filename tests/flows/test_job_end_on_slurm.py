"""A job that dies on a real Slurm: its epilogs bring what only its memory held to the shared directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_job import BrokenJob
from slurm_kit import submit
from waiting import until

from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.faults, pytest.mark.timeout(400)]

NEVER = 1_000_000  # steps: nothing goes to the shared directory while the job lives


@pytest.fixture(scope="module")
def hooked() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-end", nodes=3, hooks=True)
    yield cluster
    cluster.down()


def committed(shared: Path) -> int | None:
    """The newest step in the shared directory."""
    steps = sorted(manifest.parent.name for manifest in shared.glob("step-*/manifest.json"))
    return int(steps[-1].split("-")[1].split(".")[0]) if steps else None


@pytest.mark.parametrize("loss", ["cancelled", "a node lost"])
def test_the_newest_step_in_memory_outlives_the_job(hooked: Any, steady_digests: dict[int, str], loss: str) -> None:
    hooked.restore()
    folder = hooked.home / f"end-{loss.split()[-1]}"
    checkpoint = {
        "namespace": folder.name,
        "memory": {"every_steps": 10, "keep": 2},
        "redundancy": {"scheme": "partner"},
        "shared": {"path": "checkpoints", "every_steps": NEVER, "on_job_end": True},
    }
    job = BrokenJob(hooked, folder, spares=0, checkpoint=checkpoint)
    job.settle()
    shared = folder / "checkpoints" / folder.name
    assert committed(shared) is None
    if loss == "a node lost":
        hooked.crash_node(job.node_of(3))
    hooked.run_as_user(["scancel", job.job_id])
    step = until(lambda: committed(shared), "a step in the shared directory", 90)
    saved = max(event["step"] for event in job.watch.events("commit") if event["tier"] == "memory")
    assert step is not None and step >= saved, job.watch.story()

    job.job_id, job.watch = submit(hooked, folder / "job.yaml")
    restored = job.watch.wait_for("restore", 90)
    assert (restored["step"], restored["tier"]) == (step, "shared"), job.watch.story()
    job.settle()
    job.finish(steady_digests)
