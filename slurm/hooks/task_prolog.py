"""TaskProlog: in each task, as the job's user. What it prints as `export NAME=value` is in the task's environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm.errors import SlurmError
from slurm.hooks.directories import user_dir_name
from slurm.hooks.hook import HookJob
from slurm.hooks.places import Places, Settings


def task_prolog(places: Places, env: Mapping[str, str]) -> int:
    """Prints where the job's directories are; nothing where the prolog made none. Never fails a task."""
    try:
        job = HookJob.from_env({**env, "SLURM_JOB_UID": str(os.getuid()), "SLURM_JOB_GID": str(os.getgid())})
    except SlurmError as error:
        print(f"holdfast task_prolog: {error}", file=sys.stderr)
        return 0
    try:
        disk = places.settings().local_disk
    except (SlurmError, OSError) as error:
        disk = Settings().local_disk
        print(f"holdfast task_prolog: {error}", file=sys.stderr)
    _export("HOLDFAST_MEMORY_DIR", places.memory / user_dir_name(job.uid) / job.run)
    if disk:
        _export("HOLDFAST_DISK_DIR", Path(disk) / user_dir_name(job.uid))
    return 0


def _export(name: str, path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        print(f"export {name}={path}")
