"""hydra's submitit launcher: each task of a sweep trains under Holdfast, and goes on after a fault."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INSTALL = "hydra-core==1.3.8 hydra-submitit-launcher==1.2.0 omegaconf==2.3.1 antlr4-python3-runtime==4.9.3"

pytestmark = pytest.mark.long(seconds=20)


def test_each_task_of_a_sweep_trains_through_a_fault_and_its_log_has_each_line_once(
    tmp_path: Path, frameworks: Callable[..., None]
) -> None:
    frameworks("hydra", "omegaconf", install=INSTALL)
    sweep = ["hydra/launcher=submitit_local", "hydra.sweep.dir=sweep", "+lr=1.0,3.0"]
    argv = [sys.executable, HERE / "hydra_app.py", "--multirun", *sweep]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for number, rate in enumerate((1.0, 3.0)):
        assert float((tmp_path / "sweep" / str(number) / "loss").read_text()) == rate / 2**20
    logs = [path.read_text() for path in (tmp_path / "sweep" / ".submitit").rglob("*_log.out")]
    assert len(logs) == 2
    for log in logs:
        assert (log.count("attempt_start: attempt=1"), log.count("job_end:")) == (1, 1), log
