"""`python -m launcher.supervisor JOB.yaml [--job-dir DIR]`: for batch scripts. Runs inside the Slurm job."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from launcher.errors import LauncherError
from launcher.jobfile import load_job
from launcher.module_names import check_modules
from launcher.supervisor import supervise
from slurm import JobEnvironment, SlurmError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m launcher.supervisor", description="Supervise a job to its end.")
    parser.add_argument("job", type=Path, help="the job file (YAML)")
    parser.add_argument("--job-dir", type=Path, help="the job's folder, on a shared file system (runs/$SLURM_JOB_ID)")
    arguments = parser.parse_args()
    try:
        spec = load_job(arguments.job)
        check_modules(spec, os.environ)
        job = JobEnvironment.from_env(os.environ)
        job_dir = arguments.job_dir or Path("runs") / str(job.job_id)
        return supervise(spec, job_dir, "slurm").exit_code
    except (LauncherError, SlurmError) as error:
        print(f"holdfast: error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


if __name__ == "__main__":
    sys.exit(main())
