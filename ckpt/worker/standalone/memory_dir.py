"""The memory directory of a run without a launcher: its path, its lock, and the note about its current attempt."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from ckpt.config import CheckpointConfig, Place, environment_of
from ckpt.errors import ConfigError
from ckpt.format.atomic_files import MEMORY_ROOT, dump_json, durable_write, private_directory
from ckpt.format.file_lock import locked
from ckpt.tiers.posix import SharedTier

LOG = "agent.log"
_NOTE = "solo.json"


def slurm_job(env: Mapping[str, str]) -> str:
    """The name of the Slurm job's memory directory, as the launcher and Slurm's hooks expect it; "" outside a job."""
    if "SLURM_JOB_ID" not in env:
        return ""
    return f"slurm-{env.get('SLURM_CLUSTER_NAME', 'cluster')}-{env['SLURM_JOB_ID']}"


def run_id(config: CheckpointConfig, job: str = "") -> str:
    """The run's id: the same for every start on this node with the same shared directory. A new directory gives a new
    id.

    A later start of a run takes over its claim at once. On another node no lock shows whether the earlier start is
    alive, so a start there is another run.

    Args:
        job: the Slurm job in which the run is, and whose nodes share the id; "" if there is none.
    """
    name = f"{job or f'solo-{os.uname().nodename}'}-{config.namespace}"
    if config.shared is None:
        return name
    created = SharedTier(config.shared.path, config.namespace).prepare()
    return f"{name}-{xxhash.xxh32_hexdigest(repr(created).encode())}"


def memory_directory(config: CheckpointConfig, job: str = "") -> Path:
    """The memory directory of this namespace and shared directory. It is created, private to this user.

    Args:
        job: the Slurm job that the directory belongs to; "" if it belongs to none.

    Raises:
        ConfigError: the existing directory is not private to this user.
    """
    shared = config.shared.path if config.shared else ""
    digest = xxhash.xxh32_hexdigest(f"{config.namespace} {shared}".encode())
    # A socket's path has at most 107 bytes, and the job's name may take half of them.
    below = f"{job}/mpi-{digest}" if job else f"solo-{config.namespace[:40]}-{digest}"
    directory = MEMORY_ROOT / f"holdfast-{os.getuid()}" / below
    private_directory(directory)
    return directory


def lock_directory(ram_dir: Path, config: CheckpointConfig) -> int:
    """Locks a memory directory against other programs as long as the returned descriptor is open.

    Raises:
        ConfigError: another program has locked it.
    """
    try:
        return locked(ram_dir / "solo.lock")
    except BlockingIOError:
        raise ConfigError(
            f"Checkpointer: namespace {config.namespace!r} is in use by another process on node "
            f"{os.uname().nodename} ({ram_dir}); wait for it to end, or choose another namespace"
        ) from None


def write_note(place: Place, launch: str = "") -> None:
    """Records the current attempt, from which the next start continues counting.

    Args:
        launch: the launch whose other workers may use this note; "" if none may.
    """
    note = {"launch": launch, "pid": os.getpid(), "attempt": place.attempt, "run_id": place.run_id}
    durable_write(place.ram_dir / _NOTE, dump_json(note), sync=False)


def read_note(ram_dir: Path) -> dict[str, Any]:
    """The last note of `write_note`; empty if it cannot be read."""
    try:
        note = json.loads((ram_dir / _NOTE).read_bytes())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def start_agents(
    argv: Sequence[str], place: Place, config: CheckpointConfig, env: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Starts the agents of a place with an environment, to which it adds the variables that a launcher would set."""
    variables = {**environment_of(place, config), "HOLDFAST_RUN_PID": str(os.getpid())}
    with open(place.ram_dir / LOG, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as log:
        return subprocess.Popen(
            argv, env={**env, **variables}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,  # Ctrl-C is for the script; the agents must still keep the state
        )  # fmt: skip
