"""Batch jobs on the real Slurm."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping

from slurm.client import Slurm
from slurm.testbed import TestCluster

_RUNNING = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
_POLL_S = 0.2


def run_job(cluster: TestCluster, script: str, variables: Mapping[str, str], *, nodes: int, timeout_s: float) -> str:
    """Runs a batch script to its end and returns what it wrote; an AssertionError with that when it failed.

    Polls by itself: `sbatch --wait` looks after 2, 10, 42, 74 ... seconds, so a job of 11 s takes 42.
    """
    path, out = cluster.home / "job.sh", cluster.home / "job.out"
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    path.write_text(f"#!/bin/bash\n{exports}{script}")
    out.unlink(missing_ok=True)
    submit = ["sbatch", "--parsable", f"-N{nodes}", "-c8", "-o", str(out), str(path)]
    job_id = int(cluster.run_as_user(submit).stdout)
    slurm, deadline = Slurm(env=cluster.env), time.monotonic() + timeout_s
    while (job := slurm.job(job_id)) is not None and job.state in _RUNNING:
        if time.monotonic() > deadline:
            slurm.cancel(job_id)
            raise AssertionError(f"the job has not ended within {timeout_s:g} s: {out.read_text()}")
        time.sleep(_POLL_S)
    said = out.read_text()
    assert job is not None and job.state == "COMPLETED", said
    return said
