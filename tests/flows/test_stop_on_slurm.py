"""`holdfast stop` on a real Slurm: the request outlives the supervisor, and a job that waits leaves the queue."""

from __future__ import annotations

from typing import Any

import pytest
from broken_job import BrokenJob
from slurm_kit import HOLDFAST, ends_as, job_state, status
from supervised_job import SupervisedJob

pytestmark = pytest.mark.slurm


def stop(job: BrokenJob, *options: str) -> str:
    return job.cluster.run_as_user([*HOLDFAST, "stop", job.job_id, *options], timeout_s=60).stdout


def test_a_request_outlives_the_supervisor_and_the_job_is_not_requeued(
    slurm_cluster: Any, steady_digests: dict[int, str]
) -> None:
    job = SupervisedJob(slurm_cluster, slurm_cluster.home / "stop", spares=1)
    waiting = BrokenJob(slurm_cluster, slurm_cluster.home / "stop-queued", "--hold")
    step = job.settle() + 150
    stop(job, "--at-step", str(step))
    assert status(slurm_cluster, job.job_id)["stop"].startswith(f"after step {step} (asked on ")
    job.taken_over(lambda: job.signal_supervisor("KILL", job.term))

    assert job_state(slurm_cluster, waiting.job_id) == "PENDING"
    assert stop(waiting).startswith(f"job {waiting.job_id} has left the queue")
    assert job_state(slurm_cluster, waiting.job_id) == "CANCELLED"
    assert status(slurm_cluster, waiting.job_id)["state"] == "halted"

    end = job.watch.wait_for("job_end", 120)
    assert (end["outcome"], end["step"] >= step) == ("halted", True), job.watch.story()
    assert end["reason"] == f"stopped for good, as asked; kept: step {end['step']} in shared"
    assert job.attempts == 1 and not job.watch.events("fault"), job.watch.story()
    job.check_digests(steady_digests)
    job.watch.until(ends_as(job.cluster, job.job_id, "COMPLETED"), 60, "job that has ended well")
