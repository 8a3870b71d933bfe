"""`python -m launcher.submission.batch CLUSTER FOLDER`: what the batch script runs to supervise a job."""

from __future__ import annotations

import os
import sys

import submitit

from launcher.errors import JobFailed, LauncherError
from launcher.jobfile import JobSpec
from launcher.submission.outcome import settle
from launcher.submission.request import wait_for_request
from slurm import SlurmError


def main(cluster: str, folder: str) -> int:
    """Returns the exit code: 0 also for a job that stopped to go on after a requeue."""
    os.environ["SUBMITIT_FOLDER"] = folder  # for JobEnvironment, and for what the job submits by submitit itself
    try:
        job_dir = submitit.JobEnvironment().paths.folder
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
