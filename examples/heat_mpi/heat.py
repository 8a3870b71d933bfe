"""Heat in a plate, by MPI ranks with NumPy, that goes on after a rank's or a node's memory is lost.

    mpirun -n 3 python heat.py --lose-rank 1 --lose-at 50     rank 1 wipes its memory and dies after step 50
    mpirun -n 3 python heat.py                                goes on: rank 1 from disk, the others from memory

    sbatch --nodes=4 mpi.sbatch heat.py                       the same on several nodes and a spare: what a lost node
                                                              held comes from the memory of the others

Each rank holds some rows of the plate and saves them every 20 steps; no launcher, no daemon.
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
    parser.add_argument("--rows", type=int, default=96, help="of the plate, over all ranks")
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"))
    parser.add_argument("--namespace", default="heat")
    parser.add_argument(
        "--redundancy", default="partner", help="what nodes keep for each other: partner, xor, rs, none"
    )
    parser.add_argument("--lose-rank", type=int, default=-1, help="this rank wipes its memory and dies")
    parser.add_argument("--lose-at", type=int, default=50, help="after this step")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)  # shows what is saved and loaded
    comm = MPI.COMM_WORLD
    plate = first_plate(comm, args.rows)
    state = {"plate": plate, "step": 0}
    with Checkpointer(comm, config=what_to_keep(args)) as ckpt:
        step = first = ckpt.load(state) or 0
        while step < args.steps:
            diffuse(comm, plate)
            step += 1
            if ckpt.should_save(step):
                state["step"] = step
                ckpt.save(step, state, flush=step == args.steps)  # the last one on disk, however busy that is
            if step == args.lose_at and args.lose_rank >= 0:
                wait_for_disk(args)
                comm.Barrier()
                if comm.rank == args.lose_rank:
                    lose_memory(args.namespace, comm.rank)
                comm.Barrier()
    rows = comm.gather(plate[1:-1])
    if comm.rank == 0:
        heat = math.fsum(np.concatenate(rows).ravel())  # exact: the same for any number of ranks
        print(f"started at step {first}, done at step {step}, heat {heat!r}")


def what_to_keep(args: argparse.Namespace) -> dict[str, Any]:
    """The `checkpoint:` section that a job file would have."""
    return {
        "namespace": args.namespace,
        "memory": {"every_steps": EVERY},
        "redundancy": {"scheme": args.redundancy},
        "shared": {"path": os.path.abspath(args.folder), "every_steps": EVERY},
    }


def first_plate(comm: MPI.Comm, rows: int) -> np.ndarray:
    """This rank's rows, with one more above and below for the neighbours'; hot in the middle."""
    own = range(comm.rank * rows // comm.size, (comm.rank + 1) * rows // comm.size)
    plate = np.zeros((len(own) + 2, COLUMNS))
    for index, row in enumerate(own, start=1):
        if abs(row - rows // 2) < rows // 8:
            plate[index, COLUMNS // 4 : -COLUMNS // 4] = 100.0
    return plate


def diffuse(comm: MPI.Comm, plate: np.ndarray) -> None:
    """One step: neighbours' rows first, then every inner point moves towards the mean around it."""
    above = comm.rank - 1 if comm.rank else MPI.PROC_NULL
    below = comm.rank + 1 if comm.rank + 1 < comm.size else MPI.PROC_NULL
    comm.Sendrecv(plate[1], above, recvbuf=plate[-1], source=below)
    comm.Sendrecv(plate[-2], below, recvbuf=plate[0], source=above)
    inner = plate[1:-1, 1:-1]
    around = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    inner += 0.2 * (around - 4 * inner)


def wait_for_disk(args: argparse.Namespace) -> None:
    """Until a save is on disk: these steps are so short that the rank would die before the first one is."""
    deadline = time.monotonic() + WAIT_S
    while newest_steps(what_to_keep(args))["shared"] is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no step is on disk within {WAIT_S:g} s")
        time.sleep(0.05)


def lose_memory(namespace: str, local_rank: int) -> None:
    """What a broken node does to a rank's memory, and to the rank."""
    for path in Path(f"/dev/shm/holdfast-{os.getuid()}").glob(f"solo-{namespace}-*/own-{local_rank}-*"):
        path.unlink()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
