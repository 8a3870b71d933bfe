"""How a launcher starts the agents of an attempt: one process per node, all in one MPI world. Standard library only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping


def command() -> list[str]:
    """The agent's command line, the same on every node. HOLDFAST_* in its environment say the rest."""
    return [sys.executable, "-m", "ckpt.agent"]


def mpirun_options() -> list[str]:
    """For Open MPI's mpirun on one machine: when an agent dies the others stay, and go on serving their workers."""
    return ["--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none"]


def environment(*, loopback: bool = False, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to export to mpirun or srun, besides HOLDFAST_*.

    Args:
        loopback: all agents run on this machine, which may have no other network.
        env: where the user may have chosen otherwise.
    """
    # btl/ofi serves one-sided communication alone, of which we have none, and takes a second of each MPI_Init to look
    # for networks (seen with Open MPI 5.0.11). EFA and other fabrics are reached by mtl/ofi, which stays.
    settings = {"OMPI_MCA_btl": env.get("OMPI_MCA_btl", "^ofi")}
    if loopback:
        # No shared memory between agents: its backing files would outlive one that is killed. Elsewhere MPI chooses the
        # fastest fabric it finds: fault tolerance would forbid it some, and Slurm's PMIx ends the step in any case.
        settings |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo"}
        settings |= {"OMPI_MCA_mpi_ft_enable": "1"}  # a lost agent is an error in the others, not their end
    if os.getuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return settings
