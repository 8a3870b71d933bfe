"""What a run without a launcher keeps on a node: its directory in memory, whose it is, and what it is called."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import xxhash

from ckpt.config import CheckpointConfig, Place
from ckpt.errors import ConfigError
from ckpt.format.atomic_files import MEMORY_ROOT, dump_json, durable_write, private_directory
from ckpt.format.file_lock import locked
from ckpt.tiers.posix import SharedTier

LOG = "agent.log"
_NOTE = "solo.json"


def slurm_job(env: Mapping[str, str]) -> str:
    """`slurm-<cluster>-<job>`, as the launcher calls a job's memory and Slurm's hooks look for it; "" outside a job."""
    if "SLURM_JOB_ID" not in env:
        return ""
    return f"slurm-{env.get('SLURM_CLUSTER_NAME', 'cluster')}-{env['SLURM_JOB_ID']}"


def run_id(config: CheckpointConfig, job: str = "") -> str:
    """The same for every start that shares a directory; another once that was deleted: then training starts anew.

    Args:
        config: what is kept where.
        job: the Slurm job that the run ends with; "": it goes on with any later start on this node.
    """
    name = f"{job or 'solo'}-{config.namespace}"
    if config.shared is None:
        return name
    created = SharedTier(config.shared.path, config.namespace).prepare()
    return f"{name}-{xxhash.xxh32_hexdigest(repr(created).encode())}"


def memory_directory(config: CheckpointConfig, job: str = "") -> Path:
    """The memory directory of this namespace and shared directory, made private to this user.

    Args:
        config: what is kept where.
        job: the Slurm job that the directory belongs to; "": to none.

    Raises:
        ConfigError: what is there is not this user's alone.
    """
    shared = config.shared.path if config.shared else ""
    digest = xxhash.xxh32_hexdigest(f"{config.namespace} {shared}".encode())
    # A socket's path has 107 bytes, and the job's name may take half of them.
    below = f"{job}/mpi-{digest}" if job else f"solo-{config.namespace[:40]}-{digest}"
    directory = MEMORY_ROOT / f"holdfast-{os.getuid()}" / below
    private_directory(directory)
    return directory


def lock_directory(ram_dir: Path, config: CheckpointConfig) -> int:
    """Keeps other programs out of a memory directory while the descriptor returned is open.

    Raises:
        ConfigError: another one is in it.
    """
    try:
        return locked(ram_dir / "solo.lock")
    except BlockingIOError:
        raise ConfigError(
            f"Checkpointer: namespace {config.namespace!r} is in use by another process on node "
            f"{os.uname().nodename} ({ram_dir}); wait for it to end, or choose another namespace"
        ) from None


def write_note(place: Place, launch: str = "") -> None:
    """Says which attempt this is: the next one counts on from it.

    Args:
        place: where we are.
        launch: whose other workers may follow this note; "": nobody's.
    """
    note = {"launch": launch, "pid": os.getpid(), "attempt": place.attempt, "run_id": place.run_id}
    durable_write(place.ram_dir / _NOTE, dump_json(note), sync=False)


def read_note(ram_dir: Path) -> dict[str, Any]:
    """What `write_note` wrote last; empty when there is nothing to be read."""
    try:
        note = json.loads((ram_dir / _NOTE).read_bytes())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def agent_variables(place: Place, config: CheckpointConfig) -> dict[str, str]:
    """What the environment says to the agents of a place, as a launcher's would."""
    return {
        "HOLDFAST_RUN_ID": place.run_id,
        "HOLDFAST_ATTEMPT": str(place.attempt),
        "HOLDFAST_NODES": ",".join(place.nodes),
        "HOLDFAST_RANKS_PER_NODE": str(place.ranks_per_node),
        "HOLDFAST_RAM_DIR": str(place.ram_dir),
        "HOLDFAST_RUN_PID": str(os.getpid()),
        "HOLDFAST_CHECKPOINT": json.dumps({k: v for k, v in asdict(config).items() if v is not None}),
    }


def open_log(path: str, flags: int) -> int:
    """An opener for files that are this user's alone."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
