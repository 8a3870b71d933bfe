"""What a user reads of a job that waits in Slurm's queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.submission.queue import why_it_waits
from slurm import Job, Node

RECORDED = Path(__file__).parents[1] / "slurm" / "recorded"
PENDING = RECORDED / "job_pending.txt"


@pytest.mark.parametrize(
    ("reason", "held"),
    [("Resources", False), ("launch_failed_requeued_held", True), ("JobHeldAdmin", True), ("(null)", False)],
)
def test_a_held_job_is_told_from_one_that_waits_its_turn(reason: str, held: bool) -> None:
    job = Job.parse(PENDING.read_text().replace("Reason=Resources", f"Reason={reason}"))
    told = why_it_waits(job, list)
    assert told.startswith("waits in the queue: ")
    assert (f"scontrol release {job.id}" in told) is held


@pytest.mark.parametrize(
    ("reason", "named"),
    [
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions", True),
        ("ReqNodeNotAvail,_UnavailableNodes:gpu_2", True),
        ("Priority", False),
    ],
)
def test_a_job_that_waits_for_drained_nodes_names_them_and_why(reason: str, named: bool) -> None:
    job = Job.parse(PENDING.read_text().replace("Reason=Resources", f"Reason={reason}"))
    line = "NodeName=gpu_{} CPUTot=8 State=IDLE{} Partitions={} SlurmdStartTime=None Reason={}"
    epilog = "Epilog error [root@2026-11-22T00:38:29]"
    lines = [line.format(1, "", "train", ""), line.format(2, "+DRAIN", "train", epilog)]
    lines.append(line.format(3, "+DRAIN", "other", "of no concern"))
    told = why_it_waits(job, lambda: [Node.parse(text) for text in lines])
    said = reason.replace("_", " ").replace("gpu 2", "gpu_2")
    assert told == f"waits in the queue: {said}" + (f"; gpu_2: {epilog}" if named else "")


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_requeued_job_is_told_how_long_slurm_delays_it(restarts: int) -> None:
    text = (
        PENDING.read_text()
        .replace("Reason=Resources", "Reason=BeginTime")
        .replace("Restarts=0", f"Restarts={restarts}")
    )
    assert ("by 120 s where" in why_it_waits(Job.parse(text), list)) is bool(restarts)
