"""hydra's submitit launcher: each task of a sweep trains under Holdfast, and goes on after a fault."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slurm_kit import write_job

HERE = Path(__file__).parent

pytestmark = pytest.mark.long(seconds=20)


@pytest.mark.faults
def test_each_task_of_a_sweep_trains_through_a_fault_and_its_log_has_each_line_once(
    tmp_path: Path, frameworks: Callable[..., None]
) -> None:
    frameworks("hydra", "omegaconf")
    argv = [sys.executable, HERE / "hydra_app.py", *_sweep("submitit_local")]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    _check(tmp_path)


@pytest.mark.slurm
@pytest.mark.faults
@pytest.mark.timeout(400)
def test_on_slurm_each_task_is_a_job_and_trains_through_a_fault(
    slurm_cluster: Any, frameworks: Callable[..., None]
) -> None:
    frameworks("hydra", "omegaconf")
    folder = write_job(slurm_cluster, slurm_cluster.home / "hydra", {}).parent
    argv = [sys.executable, str(HERE / "hydra_app.py"), *_sweep("submitit_slurm")]
    env = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    slurm_cluster.run_as_user([*argv, "hydra.launcher.timeout_min=10"], cwd=folder, env=env, timeout_s=300)
    _check(folder)


def _sweep(launcher: str) -> list[str]:
    return ["--multirun", f"hydra/launcher={launcher}", "hydra.sweep.dir=sweep", "+lr=1.0,3.0"]


def _check(folder: Path) -> None:
    """Each task has gone on after the fault, and its log has each line once."""
    for number, rate in enumerate((1.0, 3.0)):
        assert float((folder / "sweep" / str(number) / "loss").read_text()) == rate / 2**20
    logs = [path.read_text() for path in (folder / "sweep" / ".submitit").rglob("*_log.out")]
    assert len(logs) == 2
    for log in logs:
        assert (log.count("attempt_start: attempt=1"), log.count("job_end:")) == (1, 1), log
