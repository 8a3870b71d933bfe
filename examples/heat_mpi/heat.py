"""Heat diffusion in a plate with MPI and NumPy. The program resumes after a rank's or a node's memory is lost.

    mpirun -n 3 python heat.py --lose-rank 1 --lose-at 50     rank 1 removes its memory and dies after step 50
    mpirun -n 3 python heat.py                                resumes: rank 1 from disk, the other ranks from memory

    sbatch --nodes=4 mpi.sbatch heat.py                       on several nodes with a spare: the data of a lost node
                                                              come from the memory of the other nodes

Each rank has some rows of the plate and saves them every 20 steps. No launcher and no daemon is needed.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from holdfast import Checkpointer, newest_steps

EVERY = 20
COLUMNS = 64
WAIT_S = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=96, help="rows of the plate, over all ranks")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    parser.add_argument("--namespace", default="heat")
    parser.add_argument(
        "--redundancy", default="partner", help="redundancy scheme between nodes: partner, xor, rs, none"
    )
    parser.add_argument("--lose-rank", type=int, default=-1, help="this rank removes its memory and dies")
    parser.add_argument("--lose-at", type=int, default=50, help="step after which it dies")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)  # Holdfast logs saves and loads
    comm = MPI.COMM_WORLD
    plate = first_plate(comm, args.rows)
    state = {"plate": plate, "step": 0}
    with Checkpointer(comm, config=checkpoint_config(args)) as ckpt:
        step = first = ckpt.load(state) or 0
        while step < args.steps:
            diffuse(comm, plate)
            step += 1
            if ckpt.should_save(step) or step == args.steps:
                state["step"] = step
                ckpt.save(step, state, flush=step == args.steps)  # the last step is flushed to disk in any case
            if step == args.lose_at and args.lose_rank >= 0:
                wait_for_disk(args)
                comm.Barrier()
                if comm.rank == args.lose_rank:
                    lose_memory(args.namespace, comm.rank)
                comm.Barrier()
    rows = comm.gather(plate[1:-1])
    if comm.rank == 0:
        heat = math.fsum(np.concatenate(rows).ravel())  # an exact sum: the same for any number of ranks
        print(f"started at step {first}, done at step {step}, heat {heat!r}")


def checkpoint_config(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that a job file has in its section `checkpoint:`."""
    return {
        "namespace": args.namespace,
        "memory": {"every_steps": EVERY},
        "redundancy": {"scheme": args.redundancy},
        "shared": {"path": os.path.abspath(args.folder), "every_steps": EVERY},
    }


def first_plate(comm: MPI.Comm, rows: int) -> np.ndarray:
    """This rank's rows before the first step, [rows + 2, COLUMNS]: hot in the middle of the plate.

    The first and the last row are copies of the neighbours' rows; see `diffuse`.
    """
    own = range(comm.rank * rows // comm.size, (comm.rank + 1) * rows // comm.size)
    plate = np.zeros((len(own) + 2, COLUMNS))
    for index, row in enumerate(own, start=1):
        if abs(row - rows // 2) < rows // 8:
            plate[index, COLUMNS // 4 : -COLUMNS // 4] = 100.0
    return plate


def diffuse(comm: MPI.Comm, plate: np.ndarray) -> None:
    """One step: exchange rows with the neighbours, then move each inner point towards the mean of its neighbours."""
    above = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    below = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    comm.Sendrecv(plate[1], above, recvbuf=plate[-1], source=below)
    comm.Sendrecv(plate[-2], below, recvbuf=plate[0], source=above)
    inner = plate[1:-1, 1:-1]
    around = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    inner += 0.2 * (around - 4 * inner)


def wait_for_disk(args: argparse.Namespace) -> None:
    """Wait until the first save is on disk. Steps here are so short that the rank would otherwise die before that."""
    deadline = time.monotonic() + WAIT_S
    while newest_steps(checkpoint_config(args))["shared"] is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{args.folder}: got no step within {WAIT_S:g} s, expected the first save")
        time.sleep(0.05)


def lose_memory(namespace: str, local_rank: int) -> None:
    """Simulate the loss of a node: remove the memory of this rank's checkpoints and kill the rank."""
    for path in Path(f"/dev/shm/holdfast-{os.getuid()}").glob(f"solo-{namespace}-*/own-{local_rank}-*"):
        path.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
