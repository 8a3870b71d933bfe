"""`python -m launcher.clusters.slurm.booster`: a booster's batch script runs it. It starts a runner on each node.

A booster is a further Slurm job of a run, which Slurm may preempt. It belongs to one start of the run's first job, the
base. If that start has ended while the booster waited in the queue, the booster ends at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import ckpt.agent.process.launch as agent_launch
from holdfast.base.environment import Variable
from launcher.env.containers import of_the_steps
from launcher.errors import LauncherError
from launcher.job.jobfile import read_job
from launcher.job.run_id import base_job
from slurm import JobEnvironment, Slurm, SlurmError


def runners_srun(job: JobEnvironment, job_dir: Path, in_container: list[str]) -> list[str]:
    """The srun command line that starts a runner on each of a booster's nodes."""
    options = ("--mpi=none", f"--output={job_dir / 'log' / 'runner-%N.log'}", "--open-mode=append")
    argv = agent_launch.srun(job.job_id, job.nodes, *in_container, *options)
    return argv + agent_launch.unmoved([*agent_launch.PYTHON, "-m", "launcher.runner"])


def base_is_over(slurm: Slurm, env: Mapping[str, str]) -> bool:
    """Whether the start of the base to which this booster belongs has certainly ended."""
    try:
        base = slurm.job(base_job(env[Variable.RUN_ID]))
    except SlurmError:
        return False  # if the base has ended, the runners find no supervisor and end
    return base is None or base.state != "RUNNING" or base.restarts != int(env[Variable.RESTART_COUNT])


def main() -> int:
    """Replaces this process by the runners' srun. Returns 0 if the base has ended."""
    env = os.environ
    if base_is_over(Slurm(), env):
        return 0
    try:
        job, job_dir = JobEnvironment.from_env(env), Path(env[Variable.JOB_DIR])
        argv = runners_srun(job, job_dir, of_the_steps(read_job(job_dir).slurm, job_dir))
    except (LauncherError, SlurmError) as error:
        print(f"holdfast: error: {error}", file=sys.stderr)
        return 1
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    sys.exit(main())
