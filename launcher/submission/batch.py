"""`python -m launcher.submission.batch CLUSTER FOLDER`: the program of the batch script. It supervises the job."""

from __future__ import annotations

import os
import sys

import submitit

from launcher.errors import JobFailed, LauncherError
from launcher.job.jobfile import JobSpec
from launcher.submission.outcome import settle
from launcher.submission.request import wait_for_request
from slurm import SlurmError


def main(cluster: str, folder: str) -> int:
    """Supervise the job; returns the exit code. It is 0 for a job that has stopped and continues after a requeue."""
    os.environ["SUBMITIT_FOLDER"] = folder  # for submitit's JobEnvironment, here and in the job
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
