"""A job that ends on a real Slurm: its agents bring what only memory held to the shared directory within KillWait."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broken_job import EVERY, BrokenJob
from waiting import until

from slurm.testbed import TestCluster

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]

_ELAPSED_S = 75.0  # with the time in the queue: Slurm's limits are whole minutes
NEVER = 1_000_000  # steps: nothing goes to the shared directory while the job trains


@pytest.fixture(scope="module")
def nodes() -> Iterator[TestCluster]:
    cluster = TestCluster.up(f"pytest-{os.getpid()}-end", nodes=2)
    yield cluster
    cluster.down()


def committed(shared: Path) -> int | None:
    """The newest step in the shared directory."""
    steps = sorted(manifest.parent.name for manifest in shared.glob("step-*/manifest.json"))
    return int(steps[-1].split("-")[1].split(".")[0]) if steps else None


def end(cluster: Any, job: BrokenJob, how: str) -> None:
    if how == "cancelled":
        cluster.run_as_user(["scancel", job.job_id])
    elif how == "out of time":
        until(lambda: time.time() > job.submitted_at + _ELAPSED_S or None, "an age that a limit can be below", 120)
        job.set_time_limit(60)
    else:
        job.tell("raise-1")
        job.watch.wait_for("fault", 60, kind="user_error")
        job.tell("raise-1")


@pytest.mark.parametrize("how", ["cancelled", "failed twice", pytest.param("out of time", marks=pytest.mark.faults)])
def test_the_newest_step_in_memory_outlives_the_job(nodes: Any, how: str) -> None:
    nodes.restore()
    folder = nodes.home / f"end-{how.replace(' ', '-')}"
    tiers = {"shared": {"path": "checkpoints", "every_steps": NEVER}}
    job = BrokenJob(nodes, folder, spares=0, tiers=tiers)
    job.settle()
    shared = folder / "checkpoints" / folder.name
    assert committed(shared) is None
    end(nodes, job, how)
    ended = job.watch.wait_for("job_end", 120)
    saved = max(event["step"] for event in job.watch.events("commit") if event["tier"] == "memory")
    assert saved >= EVERY and committed(shared) == saved, (ended, job.watch.story())
