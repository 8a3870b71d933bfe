"""`python -m launcher.submission.batch CLUSTER FOLDER`: the program of the batch script. It supervises the job.

FOLDER is the job's folder. %j in it is the job's id, which the scheduler tells the job.
"""

from __future__ import annotations

import os
import sys

from launcher.errors import JobFailed, LauncherError
from launcher.job.jobfile import JobSpec
from launcher.scheduler import scheduler
from launcher.submission.outcome import settle
from launcher.submission.request import wait_for_request
from launcher.submission.submitit_base import JobPaths
from slurm import SlurmError


def main(cluster: str, folder: str) -> int:
    """Supervise the job; returns the exit code. It is 0 for a job that has stopped and continues after a requeue."""
    try:
        place = scheduler(cluster).place(os.environ)
        job_dir = JobPaths(folder, job_id=None if place is None else place.job_id).folder
        spec = JobSpec.from_json(wait_for_request(job_dir))
        from launcher.supervisor import supervise

        outcome = supervise(spec, job_dir, cluster)
    except (LauncherError, SlurmError) as error:
        print(f"holdfast: error: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    try:
        settle(spec.name, outcome)
    except JobFailed as error:
        print(f"holdfast: {error}", file=sys.stderr)
    except SystemExit:
        return 0
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
