"""Containers by pyxis, NVIDIA's plugin for Slurm. Its options belong to the steps that run the job's processes.

On the batch script they would have no effect, because pyxis acts on steps, or would put the supervisor, which calls
Slurm, into the container. The steps call the supervisor's Python by its path, so the image or a mount needs it there.
Slurm's own `container` (an OCI bundle) is an sbatch option like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PREFIX = "container-"
_SLURMS_OWN = ("container-id",)


def of_the_batch(options: Mapping[str, Any]) -> dict[str, Any]:
    """The sbatch options among a job's `slurm` section."""
    return {option: value for option, value in options.items() if not _is_pyxis(option)}


def of_the_steps(options: Mapping[str, Any], job_dir: Path) -> list[str]:
    """The srun options among a job's `slurm` section. With an image, the job's folder is mounted too.

    Args:
        options: the `slurm` section, long names with dashes; True stands for a flag.
        job_dir: the job's folder.
    """
    chosen = {option: value for option, value in options.items() if _is_pyxis(option)}
    if "container-image" in chosen or "container-name" in chosen:
        mounts = [chosen["container-mounts"]] if chosen.get("container-mounts") else []
        chosen["container-mounts"] = ",".join([*map(str, mounts), f"{job_dir}:{job_dir}"])
    return [f"--{option}" if value is True else f"--{option}={value}" for option, value in chosen.items()]


def in_container(options: Mapping[str, Any]) -> bool:
    """Whether the job's processes run in a container of pyxis."""
    return any(map(_is_pyxis, options))


def _is_pyxis(option: str) -> bool:
    return option.startswith(_PREFIX) and option not in _SLURMS_OWN
