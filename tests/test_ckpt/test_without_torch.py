"""A program with NumPy arrays runs where torch is not installed, and starts without importing it where it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from test_heat import HEAT, MPIRUN, OPTIONS
from trainer_kit import solo_namespace

from ckpt.agent.process.launch import environment

# Python imports a sitecustomize module of its path before anything else: here one that lets nobody import torch.
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")

sys.meta_path.insert(0, Blocker())
"""


def test_an_mpi_program_saves_and_resumes_where_torch_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    env = {**os.environ, **environment(loopback=True), "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    missing = subprocess.run(
        [sys.executable, "-c", "import torch"], env=env, capture_output=True, text=True, check=False
    )
    assert "No module named 'torch'" in missing.stderr

    def heat(namespace: str, steps: int) -> str:
        program = [sys.executable, str(HEAT), "--namespace", namespace, "--folder", str(tmp_path / "disk")]
        done = subprocess.run(
            [str(MPIRUN), *OPTIONS, "-n", "2", *program, "--steps", str(steps)],
            env=env, capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    with solo_namespace() as namespace:
        assert heat(namespace, 50).startswith("started at step 0, done at step 50")
        resumed = re.match(r"started at step (\d+), done at step 60, heat (.*)", heat(namespace, 60))
        assert resumed and resumed[1] == "50"


def test_a_checkpointer_imports_no_torch() -> None:
    check = "import sys; from ckpt import Checkpointer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
