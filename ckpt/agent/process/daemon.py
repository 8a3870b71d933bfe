"""`python -m ckpt.agent.process.daemon HOST COMMAND...`: replaces ssh; starts mpirun's daemon on a node with srun.

Standard library only. HOLDFAST_JOBS has the nodes of each Slurm job, because one MPI world may span several jobs.

When a job is requeued, preempted or near its time limit, Slurm sends SIGTERM to every process of its steps, the batch
step included. An srun that receives it kills its step, which would end the agents of all jobs before they have saved
the agreed step. A step continues without its srun, if srun is killed together with its helper process. So srun is
killed as soon as the daemon runs on its node. mpirun notices the loss of a daemon by its connection.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from ckpt.agent.process.launch import SIGNALS, blocked, srun
from holdfast.base.environment import Variable

_RUNS = "holdfast: the daemon runs"


def main() -> int:
    host, *words = sys.argv[1:]
    jobs = json.loads(os.environ[Variable.JOBS])
    job = next(job for job, nodes in jobs["nodes"].items() if host in nodes)
    environment = jobs["environments"][job]
    # quoted as ssh would pass it to a shell
    command = " ".join(words).replace(jobs["session_dir"], environment[Variable.RAM_DIR])
    # The daemon would end with all agents of the world too. bash keeps the mask; dash empties it.
    program = blocked(["bash", "-c", f"echo '{_RUNS}'; {command}"])
    return _run_until_up([*srun(job, [host], "--mpi=none", "--gres=none"), *program], {**os.environ, **environment})


def _run_until_up(argv: list[str], env: dict[str, str]) -> int:
    """Start srun, and kill it once the daemon runs. Returns srun's exit code if it ends before, which mpirun reports.

    The signals have no effect here. srun gets its default actions for them.
    """
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    step = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, start_new_session=True)
    assert step.stdout is not None
    for line in step.stdout:
        if line.decode(errors="replace").rstrip() == _RUNS:
            os.killpg(step.pid, signal.SIGKILL)
            step.wait()
            return 0
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
    return step.wait() or 1


if __name__ == "__main__":
    sys.exit(main())
