"""`python -m launcher.job.run_liveness RUN_ID`: exits with code 0 if the job of that run has certainly ended.

For a job on Slurm, Slurm's state of the job decides. For a job on the local cluster, all its processes on this machine
must have ended. The ckpt agents of a new run call this program for the run whose claim they find (HOLDFAST_RUN_ENDED).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ckpt.agent.process.launch import PYTHON
from holdfast.base.environment import Variable
from slurm import Slurm, SlurmError

if TYPE_CHECKING:
    from launcher.job.supervisor_process import Process

_UNSURE = "NODE_FAIL"  # processes may still run on a node that Slurm cannot reach


def command() -> list[str]:
    """The command line of this program, without the run's id."""
    return [*PYTHON, "-m", "launcher.job.run_liveness"]


def verdict(run_id: str, slurm: Slurm, env: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether a run has certainly ended, and the state of its job in words.

    slurmctld deletes its record of a job some time after the end (MinJobAge). So a job of this cluster that it does not
    know has ended. A job that is ending is COMPLETING until its last process has ended.
    """
    cluster = env.get("SLURM_CLUSTER_NAME", "")
    if run_id.startswith("local-"):
        return _local(run_id, env)
    match = re.fullmatch(r"slurm-(.+)-([0-9]{1,10})", run_id, re.ASCII)
    if match is None or match[1] != cluster:
        return False, f"is no job of cluster {cluster or '(none)'}"
    try:
        job = slurm.job(int(match[2]))
    except SlurmError as error:
        return False, str(error)
    if job is None:
        return True, f"job {match[2]} is over, Slurm has forgotten it"
    return job.has_ended and job.state != _UNSURE, f"job {match[2]} is {job.state}"


def running(run_id: str) -> str:
    """What shows that a run certainly goes on, in words; "" if nothing does."""
    local = _local_process(run_id, os.environ)
    if local is not None:
        return f"its supervisor is process {local.pid} here" if local.alive() else ""
    match = re.fullmatch(r"slurm-(.+)-([0-9]{1,10})", run_id, re.ASCII)
    if match is None:
        return ""
    try:
        slurm = Slurm()
        job = slurm.job(int(match[2])) if match[1] == slurm.cluster_name() else None
    except SlurmError:
        return ""
    return f"job {match[2]} is {job.state}" if job is not None and job.state == "RUNNING" else ""


def _local(run_id: str, env: Mapping[str, str]) -> tuple[bool, str]:
    """The same for a local run, searched in the registry and in the folder that has the current job's folder."""
    from holdfast.base.processes import pids_with_environment

    process = _local_process(run_id, env)
    if process is None:
        return False, "is no local job that is known here"
    if not process.has_ended():
        return False, f"its supervisor, process {process.pid} on {process.host}, may live"
    left = pids_with_environment({Variable.RUN_ID: run_id})
    return not left, f"its processes live: {left}" if left else "its processes are gone"


def _local_process(run_id: str, env: Mapping[str, str]) -> Process | None:
    """The supervisor of a local run; None if the run is not known here."""
    from launcher.job.registry import listed_jobs
    from launcher.job.run_id import local_run_id
    from launcher.job.supervisor_process import Process

    beside = Path(env[Variable.JOB_DIR]).parent if env.get(Variable.JOB_DIR) else None
    job = next((job for job in listed_jobs(beside) if local_run_id(job.folder) == run_id), None)
    return Process.read(job.folder) if job is not None else None


def main() -> int:
    if len(sys.argv) != 2:
        print("launcher.job.run_liveness: expected one run id", file=sys.stderr)
        return 2
    ended, reason = verdict(sys.argv[1], Slurm(), os.environ)
    print(reason)
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
