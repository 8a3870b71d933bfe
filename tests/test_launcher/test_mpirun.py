"""What killed mpiruns leave behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from launcher.clusters.mpirun import remove_remains


def test_the_files_of_mpiruns_that_have_ended_are_removed_and_no_others(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    kept = {f"ompi.{os.getpid()}", "own-0-1.data", "ompi.conf"}
    for name in (*kept, f"ompi.{ended.pid}"):
        (tmp_path / name / "0").mkdir(parents=True)
    remove_remains(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept
    remove_remains(tmp_path / "missing")
