"""The settings of an agent's MPI on its node. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

# directories in which the kernel lists fast network cards: EFA, InfiniBand, RoCE and Omni-Path; Slingshot
_CARDS = ("sys/class/infiniband", "sys/class/cxi")
_CHOICE = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl")


def mpi_settings(env: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """The variables to add to an agent's environment before MPI starts.

    Args:
        env: the agent's environment. Its MPI settings are the site's, and have priority.
    """
    settings = {"OMPI_MCA_mpi_yield_when_idle": "1"}  # agents wait for each other in MPI_Init while workers start
    if not any(name in env for name in _CHOICE) and not _has_fast_fabric(root):
        # Without a card Open MPI uses TCP sockets anyway, but libfabric searches for a second first.
        settings |= {"OMPI_MCA_btl": "^ofi", "OMPI_MCA_mtl": "^ofi"}
    return {name: value for name, value in settings.items() if name not in env}


def _has_fast_fabric(root: Path) -> bool:
    return any(cards.is_dir() and any(cards.iterdir()) for cards in (root / path for path in _CARDS))
