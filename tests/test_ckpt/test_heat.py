"""An MPI program with NumPy arrays goes on after a rank's memory is lost, and ends as if nothing had happened."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from mpi_kit import session_options
from trainer_kit import solo_directories, solo_namespace

from ckpt.agent.process.launch import environment, mpirun_options
from ckpt.agent.process.lifetime import MemoryDirectory

HEAT = Path(__file__).resolve().parents[2] / "examples" / "heat_mpi" / "heat.py"
MPIRUN = Path(sys.executable).with_name("mpirun")
OPTIONS = [option for option in mpirun_options() if option not in ("--runtime-options", "recoverable")]


def heat(namespace: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = ["--namespace", namespace, "--folder", str(folder), "--steps", "60", *more]
    return subprocess.run(
        [str(MPIRUN), *OPTIONS, *session_options(), "-n", "3", sys.executable, str(HEAT), *arguments],
        env={**os.environ, **environment(loopback=True)}, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def test_a_rank_that_lost_its_memory_goes_on_from_disk_and_the_heat_is_the_same(tmp_path: Path) -> None:
    with solo_namespace() as namespace:
        lost = heat(namespace, tmp_path / "a", "--lose-rank", "1", "--lose-at", "50")
        assert lost.returncode != 0
        (directory,) = solo_directories(namespace)
        MemoryDirectory(directory, timeout_s=20).close()  # once its agent has ended, which nobody has told to
        resumed = heat(namespace, tmp_path / "a")
        assert resumed.returncode == 0, resumed.stderr
        loaded = re.search(r"loaded step (20|40) of namespace .* from shared", resumed.stderr)
        assert loaded, resumed.stderr
    with solo_namespace() as namespace:
        whole = heat(namespace, tmp_path / "b")
    assert list(tmp_path.glob("b/*/step-0000000060.*/manifest.json")), "the last step is on disk"
    assert resumed.stdout.startswith(f"started at step {loaded[1]}, done at step 60, heat ")
    assert resumed.stdout.split("heat ")[1] == whole.stdout.split("heat ")[1]
