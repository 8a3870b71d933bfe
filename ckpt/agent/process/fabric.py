"""What an agent's MPI looks for on its node. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# Where the kernel lists cards with a fast fabric: EFA, InfiniBand, RoCE and Omni-Path; Slingshot.
_CARDS = ("sys/class/infiniband", "sys/class/cxi")
_CHOICE = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl")


def mpi_settings(env: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """What to add to an agent's environment before MPI starts in it.

    Args:
        env: the agent's environment. What it says of MPI is the site's, and wins.
        root: of the node's file system.
    """
    settings = {"OMPI_MCA_mpi_yield_when_idle": "1"}  # in MPI_Init agents wait for each other while workers start
    if not any(name in env for name in _CHOICE) and not _has_fast_fabric(root):
        # Without a card Open MPI ends up with TCP sockets in any case, but libfabric's search takes it a second.
        settings |= {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mtl": "^ofi"}
    return {name: value for name, value in settings.items() if name not in env}


def _has_fast_fabric(root: Path) -> bool:
    return any(cards.is_dir() and any(cards.iterdir()) for cards in (root / path for path in _CARDS))
