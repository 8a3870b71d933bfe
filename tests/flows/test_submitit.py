"""submitit on a real Slurm: arrays of supervised jobs, and a Torchrun inside a function of submitit's own executor."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slurm

SWEEP = Path(__file__).resolve().parents[2] / "examples" / "submitit_sweep"
ARRAY = """
import os
from launcher import Executor, Torchrun
open("train.py", "w").write("import os, sys; print(sys.argv[1], os.environ['WORLD_SIZE'])")
executor = Executor()
executor.update_parameters(nodes=1, timeout_min=10, slurm_additional_parameters={"comment": "array"})
with executor.batch():
    jobs = [executor.submit(Torchrun("train.py", f"seed {seed}")) for seed in range(2)]
for job in jobs:
    outcome = job.result()["name"]
    print(job.job_id, outcome, job.state, (job.paths.folder / "log/attempt-0/rank-0.log").read_text().strip())
"""


@pytest.fixture
def folder(slurm_cluster: Any, request: pytest.FixtureRequest) -> Path:
    """An empty folder of the ordinary user on the shared file system."""
    folder = slurm_cluster.home / request.node.name[:40]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run(["chown", slurm_cluster.user, folder], check=True)
    return Path(folder)


def test_a_batch_is_one_array_whose_tasks_are_supervised_each_on_nodes_of_its_own(
    slurm_cluster: Any, folder: Path
) -> None:
    done = slurm_cluster.run_as_user([sys.executable, "-c", ARRAY], cwd=folder, timeout_s=150)
    lines = done.stdout.splitlines()
    array = lines[0].split("_")[0]
    assert lines == [f"{array}_{n} done COMPLETED seed {n} 1" for n in range(2)]
    nodes = [
        json.loads((folder / "runs" / f"{array}_{n}" / "events.jsonl").read_text().splitlines()[0])["run_id"]
        for n in range(2)
    ]
    assert len(set(nodes)) == 2  # two runs: they share nothing


def test_torchrun_inside_a_plain_submitit_function_trains_on_the_nodes_of_its_job(
    slurm_cluster: Any, folder: Path
) -> None:
    """The example: an array of two jobs on two nodes each, two tasks in each."""
    command = [sys.executable, str(SWEEP / "sweep.py"), "--nodes", "2", "--folder", str(folder / "sweep")]
    done = slurm_cluster.run_as_user(command, cwd=folder, timeout_s=200)
    lines = [line for line in done.stdout.splitlines() if line.startswith("job ")]
    assert [line.split(": ")[1] for line in lines] == ["done at step 50", "done at step 50"], done
    logs = sorted((folder / "sweep").glob("*_torchrun-0/log/attempt-0/rank-1.log"))
    assert len(logs) == 2, done
    assert all(log.read_text().startswith("rank 1 of 2: loss") for log in logs)
