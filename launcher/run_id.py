"""The identity of a run: the same through all requeues of its job."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def slurm_run_id(cluster: str, job_id: int | str) -> str:
    """The run of a Slurm job."""
    return f"slurm-{cluster}-{job_id}"


def base_job(run_id: str) -> int:
    """The Slurm job that a run on Slurm started with, and is named after."""
    return int(run_id.rpartition("-")[2])


def local_run_id(job_dir: Path) -> str:
    """The run in a job folder: the folder's name, and a hash that keeps equal names apart."""
    path = str(job_dir.absolute())
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", job_dir.absolute().name)[:32]
    return f"local-{name}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
