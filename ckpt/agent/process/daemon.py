"""`python -m ckpt.agent.process.daemon HOST COMMAND...`: in ssh's place, starts mpirun's daemon on a node by an srun.

Standard library only. HOLDFAST_JOBS says which Slurm job each node belongs to: one MPI world may span several jobs.
"""

from __future__ import annotations

import json
import os
import sys

from ckpt.agent.process.launch import JOBS, srun


def main() -> None:
    """Becomes the srun."""
    host, *command = sys.argv[1:]
    argv = srun(json.loads(os.environ[JOBS])[host], [host], "--mpi=none", "--gres=none")
    argv += ["sh", "-c", " ".join(command)]  # as ssh would have a shell read it
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main()
