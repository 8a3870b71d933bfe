"""`python -m ckpt.agent.process.daemon HOST COMMAND...`: in ssh's place, starts mpirun's daemon on a node by an srun.

Standard library only. HOLDFAST_JOBS says which Slurm job each node belongs to: one MPI world may span several jobs.
"""

from __future__ import annotations

import json
import os
import sys

from ckpt.agent.process.launch import JOBS, PYTHON, srun

# Slurm warns the steps of a job that is preempted, or near its time limit, by a signal to each process. mpirun's daemon
# would end with all agents of the world at that moment, before the nodes that stay have what this one holds. It gives
# its children an empty mask. bash keeps the mask; dash empties it.
_UNMOVED = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2})
os.execvp("bash", ["bash", "-c", sys.argv[1]])
"""


def main() -> None:
    """Becomes the srun."""
    host, *words = sys.argv[1:]
    jobs = json.loads(os.environ[JOBS])
    job = jobs["nodes"][host]
    environment = jobs["environments"][job]
    # As ssh would have a shell read it.
    command = " ".join(words).replace(jobs["session_dir"], environment["HOLDFAST_RAM_DIR"])
    argv = [*srun(job, [host], "--mpi=none", "--gres=none"), *PYTHON, "-c", _UNMOVED, command]
    os.execvpe(argv[0], argv, {**os.environ, **environment})


if __name__ == "__main__":
    main()
