"""The node's memory directory: on tmpfs, of this user alone, one per run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.errors import LauncherError

MEMORY_ROOT = Path("/dev/shm")
_ENDED = ".ended-"
_REQUEST = "on_job_end.json"  # left by the checkpoint agent (ckpt/epilog/request.py)


class MemoryDirError(LauncherError):
    """The memory directory cannot be used safely. The node is left out of the job."""


def memory_dir(run_id: str, node: str | None = None) -> Path:
    """Where a run keeps state in a node's memory.

    Args:
        run_id: the run.
        node: names the node where several share a machine (the local cluster).
    """
    path = MEMORY_ROOT / f"holdfast-{os.getuid()}" / run_id
    return path / node if node else path


def memory_of(run_id: str, booster: str | None = None) -> Path:
    """Where a run keeps state in the memory of a node that belongs to a Slurm job.

    It bears the name of the node's own job, whose hooks make it and free it, and whose end tells later jobs of this
    user that it may go. The run goes on when a booster has ended.

    Args:
        run_id: the run, named after the job that it started with.
        booster: the number of the node's job, where that is another.
    """
    return memory_dir(run_id if booster is None else f"{run_id.rpartition('-')[0]}-{booster}")


def make_memory_dir(path: Path) -> None:
    """Makes the directory, 0700 at every level below the root; one that exists must be ours.

    Raises:
        MemoryDirError: a level is a symbolic link, no directory, or another user's; or it cannot be made.
    """
    levels = [path, *path.parents]
    for level in reversed(levels[: levels.index(MEMORY_ROOT)] if MEMORY_ROOT in levels else [path]):
        _make_private(level)


def is_looked_after(path: Path, env: Mapping[str, str]) -> bool:
    """Whether hooks free the directory after the job's end.

    Args:
        path: the node's memory directory.
        env: this process's; Slurm's TaskProlog hook tells in it where the job's memory is.
    """
    looked_after = env.get("HOLDFAST_MEMORY_DIR")
    return looked_after is not None and path.is_relative_to(looked_after)


def is_left_to_epilog(path: Path, env: Mapping[str, str]) -> bool:
    """Whether what is there goes to a lower tier after the job's end: the checkpoints ask for it, and hooks see to it.

    Args:
        path, env: as for `is_looked_after`.
    """
    return is_looked_after(path, env) and (path / _REQUEST).exists()


def remove_memory_dir(path: Path) -> None:
    """Removes the directory and the levels above it that this leaves empty, up to the root."""
    shutil.rmtree(path, ignore_errors=True)
    for level in path.parents:
        if level == MEMORY_ROOT or MEMORY_ROOT not in level.parents:
            return
        with contextlib.suppress(OSError):
            level.rmdir()


def hold_memory_dir(path: Path) -> int:
    """Keeps others from taking the directory for an ended run's, for as long as the descriptor is open; makes it."""
    while True:
        make_memory_dir(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
        os.close(descriptor)  # it was taken for one before we held it


def remove_ended(own: Path, has_ended: Callable[[str], bool]) -> list[str]:
    """Removes what ended jobs of Slurm have left on this node in this user's memory, where no hooks do.

    Slurm may end a job's step before its runner can tidy up, and a job's last start may have no runner here.

    Args:
        own: our run's directory, which stays.
        has_ended: whether a run has ended for certain. One whose runner holds its directory lives in any case.

    Returns:
        The runs whose memory was removed.
    """
    removed = []
    for path in sorted(own.parent.glob(_ENDED + "*")):
        shutil.rmtree(path, ignore_errors=True)  # another runner was killed over it
    for path in sorted(own.parent.glob("slurm-*")):
        if path == own or path.is_symlink() or not has_ended(path.name):
            continue
        with contextlib.suppress(OSError):  # it is held, or another runner of ours removes it
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                aside = path.with_name(f"{_ENDED}{path.name}-{secrets.token_hex(4)}")
                path.rename(aside)
            finally:
                os.close(descriptor)
            shutil.rmtree(aside, ignore_errors=True)
            removed.append(path.name)
    return removed


def _make_private(path: Path) -> None:
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
    except OSError as error:
        raise MemoryDirError(
            f"{path}: cannot be made ({error.strerror}); is {MEMORY_ROOT} there and writable?"
        ) from None
    if not stat.S_ISDIR(found.st_mode):
        raise MemoryDirError(f"{path}: not a directory; expected one that only user {os.getuid()} can enter: remove it")
    if found.st_uid != os.getuid():
        raise MemoryDirError(f"{path}: belongs to user {found.st_uid}, expected {os.getuid()}; have it removed")
    if found.st_mode & 0o077:
        path.chmod(0o700)
