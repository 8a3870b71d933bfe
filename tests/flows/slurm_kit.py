"""Jobs on a real Slurm cluster as their user has them: submitted, followed, looked at."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from main_job import Watch

HOLDFAST = [sys.executable, "-m", "launcher"]


def write_job(cluster: Any, folder: Path, job: Mapping[str, Any]) -> Path:
    """The folder made anew, the user's own, with the job file in it; returns the job file."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(dict(job)))
    subprocess.run(["chown", "-R", cluster.user, folder], check=True)
    return folder / "job.yaml"


def submit(cluster: Any, job_file: Path, *flags: str) -> tuple[str, Watch]:
    """`holdfast submit job.yaml --json` as the ordinary user; the job's id and its events."""
    done = cluster.run_as_user([*HOLDFAST, "submit", "job.yaml", "--json", *flags], cwd=job_file.parent, timeout_s=60)
    facts = json.loads(done.stdout)
    return str(facts["job_id"]), Watch(Path(facts["folder"]), lambda: scheduler_view(cluster))


def status(cluster: Any, job_id: str) -> dict[str, Any]:
    """`holdfast status JOB --json` as the ordinary user."""
    return json.loads(cluster.run_as_user([*HOLDFAST, "status", job_id, "--json"], timeout_s=60).stdout)


def shown(cluster: Any, job_id: str) -> str:
    """`holdfast status JOB` as the ordinary user reads it."""
    return cluster.run_as_user([*HOLDFAST, "status", job_id], timeout_s=60).stdout


def scheduler_view(cluster: Any) -> str:
    return cluster.run_as_user(["squeue", "--states=all"], timeout_s=20).stdout


def job_state(cluster: Any, job_id: str) -> str:
    found = cluster.run_as_user(["squeue", "-h", "--states=all", "-o", "%T", "-j", job_id], timeout_s=20).stdout
    return found.split()[0] if found.split() else "GONE"


def ends_as(cluster: Any, job_id: str, state: str) -> Callable[[], str | None]:
    return lambda: state if job_state(cluster, job_id) == state else None
