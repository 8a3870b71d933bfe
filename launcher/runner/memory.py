"""The node's memory directory: on tmpfs, private to this user, one per run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.base.environment import Variable
from launcher.errors import LauncherError

MEMORY_ROOT = Path("/dev/shm")
_ENDED = ".ended-"


class MemoryDirError(LauncherError):
    """The memory directory cannot be used safely. The node is left out of the job."""


def memory_dir(run_id: str, node: str | None = None) -> Path:
    """The directory for a run's state in a node's memory.

    Args:
        run_id: the run.
        node: the node's name, if several nodes share a machine (the local cluster).
    """
    path = MEMORY_ROOT / f"holdfast-{os.getuid()}" / run_id
    return path / node if node else path


def memory_of(run_id: str, booster: str | None = None) -> Path:
    """The directory for a run's state in the memory of a Slurm job's node.

    It has the name of the node's own job, because that job's hooks make and free it, and that job's end shows later
    jobs of this user that it may be removed. A booster may end long before the run.

    Args:
        run_id: the run, which is named after its first job.
        booster: the id of the node's job, if it is a booster's.
    """
    return memory_dir(run_id if booster is None else f"{run_id.rpartition('-')[0]}-{booster}")


def make_memory_dir(path: Path) -> None:
    """Makes the directory with mode 0700 at every level below the root. Existing levels must belong to this user.

    Raises:
        MemoryDirError: a level is a symbolic link, not a directory, or belongs to another user; or it cannot be made.
    """
    levels = [path, *path.parents]
    for level in reversed(levels[: levels.index(MEMORY_ROOT)] if MEMORY_ROOT in levels else [path]):
        _make_private(level)


def is_looked_after(path: Path, env: Mapping[str, str]) -> bool:
    """Whether hooks free the directory after the job's end.

    Args:
        path: the node's memory directory.
        env: this process's environment, in which Slurm's TaskProlog hook has set the job's memory directory.
    """
    looked_after = env.get(Variable.MEMORY_DIR)
    return looked_after is not None and path.is_relative_to(looked_after)


def remove_memory_dir(path: Path) -> None:
    """Removes the directory, and the levels above it that are then empty, up to the root."""
    shutil.rmtree(path, ignore_errors=True)
    for level in path.parents:
        if level == MEMORY_ROOT or MEMORY_ROOT not in level.parents:
            return
        with contextlib.suppress(OSError):
            level.rmdir()


def removal(path: Path) -> list[str]:
    """A command that does the same where no Python may be left, unless hooks look after the node's memory."""
    return ["sh", "-c", 'test -n "$HOLDFAST_MEMORY_DIR" || { rm -rf -- "$1"; rmdir -- "${1%/*}"; }', "sh", str(path)]


def hold_memory_dir(path: Path) -> int:
    """Makes and locks the directory, so that it is not taken for that of an ended run while the descriptor is open."""
    while True:
        make_memory_dir(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.lstat()):
                return descriptor
        os.close(descriptor)  # it was removed as that of an ended run before it was locked


def remove_ended(own: Path, has_ended: Callable[[str], bool]) -> list[str]:
    """Removes the memory of this user's ended jobs of this scheduler on this node, if there are no hooks.

    The scheduler may end a job's step before its runner can remove it. A job's last start may have no runner here.

    Args:
        own: this run's directory, which stays.
        has_ended: whether a run has certainly ended. A run whose runner has locked its directory has not.

    Returns:
        The runs whose memory was removed.
    """
    removed = []
    for path in sorted(own.parent.glob(_ENDED + "*")):
        shutil.rmtree(path, ignore_errors=True)  # an earlier runner was killed during this
    for path in sorted(own.parent.glob(f"{own.name.partition('-')[0]}-*")):
        if path == own or path.is_symlink() or not has_ended(path.name):
            continue
        with contextlib.suppress(OSError):  # it is locked, or another runner of this user removes it
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
