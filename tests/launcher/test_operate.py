"""What a user reads of a job that waits in Slurm's queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.operate import _why_it_waits
from slurm import Job

PENDING = Path(__file__).parents[1] / "slurm" / "recorded" / "job_pending.txt"


@pytest.mark.parametrize(
    ("reason", "held"),
    [("Resources", False), ("launch_failed_requeued_held", True), ("JobHeldAdmin", True), ("(null)", False)],
)
def test_a_held_job_is_told_from_one_that_waits_its_turn(reason: str, held: bool) -> None:
    job = Job.parse(PENDING.read_text().replace("Reason=Resources", f"Reason={reason}"))
    told = _why_it_waits(job)
    assert told.startswith("waits in the queue: ")
    assert (f"scontrol release {job.id}" in told) is held
