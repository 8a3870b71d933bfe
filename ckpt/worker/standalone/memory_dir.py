"""The memory directory of a run without a launcher: its path, its id, its lock, and the note about its attempt."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from ckpt.config import CheckpointConfig, Place, environment_of, owner_of
from ckpt.errors import ConfigError
from ckpt.format.atomic_files import MEMORY_ROOT, dump_json, private_directory
from ckpt.format.file_lock import locked
from ckpt.format.line import Owner
from ckpt.tiers.posix import SharedTier
from holdfast.base.environment import Variable
from holdfast.base.files import durable_write

LOG = "agent.log"
_NOTE = "solo.json"
_ID = "id"  # random text, made with the directory


def slurm_job(env: Mapping[str, str]) -> str:
    """The name of the Slurm job's memory directory, as the launcher and Slurm's hooks expect it; "" outside a job."""
    if "SLURM_JOB_ID" not in env:
        return ""
    return f"slurm-{env.get('SLURM_CLUSTER_NAME', 'cluster')}-{env['SLURM_JOB_ID']}"


def run_id(config: CheckpointConfig, ram_dir: Path, job: str = "", *, fresh: bool = False) -> str:
    """The run's id: the same for every start with the same memory directory, and in a job for all its nodes.

    A later start of a run takes over its claim at once, because the lock of the memory directory has shown that the
    earlier start has ended. Machines of one name have memory directories of their own, so they are different runs.

    Args:
        ram_dir: the locked memory directory.
        job: the Slurm job in which the run is, and whose nodes share the id; "" if there is none.
        fresh: whether this start is a run of its own.
    """
    if job:
        folder = _shared_folder(config)
        return f"{job}-{config.namespace}" + (f"-{xxhash.xxh32_hexdigest(repr(folder).encode())}" if folder else "")
    path = ram_dir / _ID
    if fresh or not path.exists():
        durable_write(path, secrets.token_hex(4).encode(), sync=False)
    return f"solo-{os.uname().nodename}-{config.namespace}-{path.read_text()[:8]}"


def memory_directory(config: CheckpointConfig, job: str = "") -> Path:
    """The memory directory of this namespace, and of its folder in the shared directory. It is created, private to this
    user.

    Without a job it belongs to that folder itself, wherever it is moved, and not to a copy of it.

    Args:
        job: the Slurm job that the directory belongs to; "" if it belongs to none.

    Raises:
        ConfigError: the existing directory is not private to this user, or the shared directory cannot be used.
    """
    if job:  # the same on all nodes; a socket's path has at most 107 bytes, and the job's name may take half of them
        shared = config.shared.path if config.shared else ""
        below = f"{job}/mpi-{xxhash.xxh32_hexdigest(f'{config.namespace} {shared}'.encode())}"
    else:
        digest = xxhash.xxh32_hexdigest(f"{config.namespace} {_shared_folder(config)}".encode())
        below = f"solo-{config.namespace[:40]}-{digest}"
    directory = _root() / below
    private_directory(directory)
    return directory


def _shared_folder(config: CheckpointConfig) -> tuple[float, int] | None:
    """What identifies the namespace's folder in the shared directory: when it was made, and its inode.

    The ranks of a node look one after another. Otherwise each of them could make the folder's mark, and read another
    time from it.
    """
    if config.shared is None:
        return None
    tier = SharedTier(config.shared.path, config.namespace)
    private_directory(_root())
    lock = os.open(_root(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return tier.prepare(), tier.folder.stat().st_ino
    finally:
        os.close(lock)


def _root() -> Path:
    """The directory of this user's memory directories on this node."""
    return MEMORY_ROOT / f"holdfast-{os.getuid()}"


def our_owner() -> Owner:
    """This user and script."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return owner_of({Variable.SCRIPT: os.path.abspath(script)} if script else {})


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
    variables = {**environment_of(place, config), Variable.RUN_PID: str(os.getpid())}
    with open(place.ram_dir / LOG, "ab", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, 0o600)) as log:
        return subprocess.Popen(
            argv, env={**env, **variables}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,  # Ctrl-C is for the script; the agents must still keep the state
        )  # fmt: skip
