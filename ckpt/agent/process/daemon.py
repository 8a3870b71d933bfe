"""`python -m ckpt.agent.process.daemon HOST COMMAND...`: replaces ssh; starts mpirun's daemon on a node with srun.

Standard library only. HOLDFAST_JOBS has the nodes of each Slurm job, because one MPI world may span several jobs.
"""

from __future__ import annotations

import json
import os
import sys

from ckpt.agent.process.launch import JOBS, PYTHON, srun

# When a job is preempted, or near its time limit, Slurm sends a signal to each process of its steps. mpirun's daemon
# would then end with all agents of the world, before the remaining nodes have copied this node's shards. So the signals
# are blocked. The daemon gives its children an empty mask. bash keeps the mask; dash empties it.
_UNMOVED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
os.execvp("bash", ["bash", "-c", sys.argv[1]])
"""


def main() -> None:
    host, *words = sys.argv[1:]
    jobs = json.loads(os.environ[JOBS])
    job = next(job for job, nodes in jobs["nodes"].items() if host in nodes)
    environment = jobs["environments"][job]
    # quoted as ssh would pass it to a shell
    command = " ".join(words).replace(jobs["session_dir"], environment["HOLDFAST_RAM_DIR"])
    argv = [*srun(job, [host], "--mpi=none", "--gres=none"), *PYTHON, "-c", _UNMOVED, command]
    os.execvpe(argv[0], argv, {**os.environ, **environment})


if __name__ == "__main__":
    main()
