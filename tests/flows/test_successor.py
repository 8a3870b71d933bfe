"""One namespace handed from a cancelled job to the next, on a real Slurm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from main_job import ARGS, SCRIPT, STEPS
from slurm_kit import HOLDFAST, submit, write_job

pytestmark = [pytest.mark.slurm, pytest.mark.faults]


@pytest.fixture
def job_file(slurm_cluster: Any) -> Path:
    """Of a job that leaves room for a second one beside it."""
    job = {
        "name": "heir", "script": str(SCRIPT), "args": ARGS, "nodes": 2,
        "checkpoint": {
            "namespace": "heir",
            "memory": {"every_steps": 5, "keep": 2},
            "shared": {"path": "checkpoints", "every_steps": 10},
        },
    }  # fmt: skip
    return write_job(slurm_cluster, slurm_cluster.home / "heir", job)


def test_a_job_submitted_while_the_cancelled_one_dies_goes_on_from_its_shared_step(
    slurm_cluster: Any, job_file: Path
) -> None:
    first, watch = submit(slurm_cluster, job_file)
    committed = watch.wait_for("commit", 120, tier="shared", step=lambda step: step >= 20)
    slurm_cluster.run_as_user(["scancel", first], timeout_s=20)
    second, heir = submit(slurm_cluster, job_file)
    restored = heir.wait_for("restore", 120)
    heir.wait_for("job_end", 120, outcome="done")

    assert restored["tier"] == "shared" and restored["step"] >= committed["step"], heir.story()
    agents = (heir.job_dir / "log" / "attempt-0" / "agents.log").read_text()
    assert "no sign of life" not in agents, agents  # it took Slurm's word, or the first one's farewell
    shared = job_file.parent / "checkpoints" / "heir"
    assert json.loads((shared / "owner.json").read_text())["job"] == second
    verified = slurm_cluster.run_as_user([*HOLDFAST, "ckpt", "verify", shared, "--json"], timeout_s=60)
    rows = json.loads(verified.stdout)
    assert rows[0]["step"] == STEPS and all(row["ok"] and row["committed"] for row in rows), rows
