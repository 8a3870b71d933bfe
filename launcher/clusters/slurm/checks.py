"""A job against the Slurm cluster, before it is submitted. What Slurm does not answer refuses nothing."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from launcher.errors import UsageError
from launcher.job import gpus
from launcher.job.jobfile import JobSpec
from slurm import Slurm, SlurmError
from slurm.command import run

_STAT_S = 30.0
_log = logging.getLogger(__name__)


def check_partition(names: str | None, spec: JobSpec) -> None:
    """Check that the job's partition has enough nodes. Refuses nothing if Slurm does not answer: sbatch will decide.

    Args:
        names: the job's partition, or several, separated by commas; None for the site's default.
        spec: the job.

    Raises:
        UsageError: no such partition has as many nodes as the job asks for.
    """
    try:
        known = Slurm().partitions()
    except SlurmError:
        return
    asked = [p for p in known if (p.name in names.split(",") if names else p.is_default)]
    largest = max(asked, key=lambda partition: len(partition.nodes), default=None)
    if largest is not None and len(largest.nodes) < spec.least_nodes:
        raise UsageError(
            f"nodes: got {spec.nodes} + {spec.spares} spares = {spec.most_nodes}, "
            f"expected at most {len(largest.nodes)}, all that partition {largest.name} has; "
            f"ask for fewer or choose another partition"
        )


def check_seen_by_nodes(folder: Path, spec: JobSpec) -> None:
    """Check that the nodes of a Slurm job can see the folder of its files.

    Raises:
        UsageError: it is in this host's memory, and the job has other nodes.
    """
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        kind = run(["stat", "--file-system", "--format=%T", str(nearest)], timeout_s=_STAT_S).stdout.strip()
    except SlurmError:
        return  # not to be found out here
    if spec.most_nodes > 1 and kind in ("tmpfs", "ramfs"):
        raise UsageError(
            f"{folder}: is in this host's memory ({kind}), expected a folder on a file system that all nodes share; "
            "`holdfast doctor JOB.yaml` looks at it from a node"
        )


def remark_on_gpus(names: str | None, spec: JobSpec) -> None:
    """Logs that the job leaves the GPUs of its partition alone. Says nothing if Slurm does not answer."""
    if gpus.count(spec.gpus_per_node):
        return
    with contextlib.suppress(SlurmError):
        if any(map(gpus.names_gpus, Slurm().gres(names))):
            where = f"partition {names}" if names else "the partition"
            _log.warning("%s has GPUs, none for the job: it trains on the CPU (see --gpus-per-node)", where)
