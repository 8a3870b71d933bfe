"""How a launcher starts the agents of an attempt: one process per node, all in one MPI world. Standard library only."""

from __future__ import annotations

import os
import sys


def command() -> list[str]:
    """The agent's command line, the same on every node. HOLDFAST_* in its environment say the rest."""
    return [sys.executable, "-m", "ckpt.agent"]


def environment(*, loopback: bool = False) -> dict[str, str]:
    """What to export to mpirun or srun, besides HOLDFAST_*.

    Args:
        loopback: all agents run on this machine, which may have no other network.
    """
    settings = {
        "OMPI_MCA_mpi_yield_when_idle": "1",  # training has the cores
    }
    if loopback:
        # No shared memory between agents: its backing files would outlive one that is killed.
        settings |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
    if os.getuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return settings
