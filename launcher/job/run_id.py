"""The id of a run. It stays the same through all requeues of the job."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path


def slurm_run_id(cluster: str, job_id: int | str) -> str:
    """The id of the run that a Slurm job starts."""
    return f"slurm-{cluster}-{job_id}"


def base_job(run_id: str) -> int:
    """The id of the Slurm job in the id of a run: the job with which the run started."""
    return int(run_id.rpartition("-")[2])


def local_run_id(job_dir: Path) -> str:
    """The id of a local run: the name of the job's folder, and a hash of its path."""
    path = str(job_dir.absolute())
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", job_dir.absolute().name)[:32]
    return f"local-{name}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"
