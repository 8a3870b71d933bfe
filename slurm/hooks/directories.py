"""A job's directories on its node: its memory directory, and its user's directory on the local disk.

`<memory>/holdfast-<uid>/slurm-<cluster>-<job id>`; with a local disk, `<disk>/holdfast-<uid>`.

Root makes only the first level, in a directory that belongs to root, through descriptors that follow no link. Below it
everything is done with the user's own rights: it can do no more than the user could.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import time
from typing import TYPE_CHECKING

from slurm.errors import SlurmError
from slurm.hooks.hook import HookJob
from slurm.hooks.log import log
from slurm.hooks.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable

_SAID_NO = 3  # exit code of a child whose function returned False
_NO_ACCOUNT = 0xFFFFFFFD
_MOST_REMOVED = 500_000  # files and directories of one job that one call removes
_CLEAR_S = 0.2  # for removing what another user has put in the place of a directory
_ENDS_S = 0.5  # for a child to end by itself after its time limit, before it is killed
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # flags of open() for a directory


class DirectoryError(SlurmError):
    """A job's directory could not be made or removed safely."""


def user_dir_name(uid: int) -> str:
    """Name of a user's directory. The launcher and ckpt use the same name."""
    return f"holdfast-{uid}"


def job_dir(memory: str, job: HookJob) -> str:
    """The job's memory directory."""
    return f"{memory}/{user_dir_name(job.uid)}/{job.run}"


def make_user_dir(parent: str, job: HookJob) -> str:
    """Makes a user's own directory (0700) in a directory of root's, and returns its path.

    What another user put there under that name is moved aside and removed.

    Raises:
        DirectoryError: the parent is not root's, or the directory cannot be made.
    """
    name = user_dir_name(job.uid)
    path = f"{parent}/{name}"
    try:
        above = os.open(parent, _DIRECTORY)
    except OSError as error:
        raise DirectoryError(f"{parent}: {error.strerror}, expected a directory") from None
    try:
        facts = os.fstat(above)
        if facts.st_uid != os.geteuid() or (facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX):
            raise DirectoryError(
                f"{parent}: mode {facts.st_mode & 0o7777:o} of uid {facts.st_uid}, expected root's own, sticky where "
                "others may write"
            )
        for _ in range(3):  # another user may create the name again each time it is moved away
            try:
                _make(name, above, job)
                return path
            except FileExistsError:
                if _is_private(name, above, job.uid):
                    return path
            _move_aside(name, parent, above, job)
        raise DirectoryError(f"{path}: planted again each time it was moved away")
    except OSError as error:
        raise DirectoryError(f"{path}: {error.strerror}") from None
    finally:
        os.close(above)


def make_job_dir(memory: str, job: HookJob) -> str:
    """Makes the job's memory directory, as its user, and returns it. After a requeue the existing directory stays.

    Raises:
        DirectoryError: it cannot be made.
    """
    path = job_dir(memory, job)
    rights = _Rights(job)
    try:
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        facts = os.lstat(path)
    except OSError as error:
        raise DirectoryError(f"{path}: {error.strerror}") from None
    finally:
        rights.back()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != job.uid:
        raise DirectoryError(f"{path}: not a directory of uid {job.uid}")
    return path


def remove_job_dir(memory: str, job: HookJob, limit_s: float) -> bool:
    """Removes the job's memory directory, as its user, and the user's if that leaves it empty.

    Returns:
        Whether it is gone; False if it has more files than can be removed in one call.

    Raises:
        DirectoryError: something in it cannot be removed.
    """
    path = job_dir(memory, job)
    end_s = time.monotonic() + limit_s

    def remove() -> bool:
        return remove_tree(path, most=_MOST_REMOVED, end_s=end_s)

    if not as_user(job, remove, limit_s + _ENDS_S, f"remove {path}"):
        return False
    try:
        os.rmdir(os.path.dirname(path))  # safe: rmdir does not follow a link
    except OSError:
        pass
    return True


def holds_memory(memory: str, job: HookJob) -> bool:
    """Whether anything is in the job's memory directory; an empty one is removed, as its user."""
    if job.uid == 0:
        return False
    path = job_dir(memory, job)
    rights = _Rights(job)
    try:
        os.rmdir(path)
    except OSError:
        pass
    finally:
        rights.back()
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def as_user(job: HookJob, act: Callable[[], bool | None], limit_s: float, what: str, *, signals: bool = False) -> bool:
    """Runs a function in a child process with the rights of a job's user, within a time limit.

    The user can neither stop, trace nor slow the child: of its user ids only that for files is the user's. With
    `signals` it has given up root, and the effective one is the user's too, which decides on signals that it sends.
    Then the user may lower its priority (sched_setscheduler(2)), and the time limit bounds what that costs. Its real
    and saved user ids, which count for being stopped (kill(2), ptrace(2)), belong to no account.

    Args:
        job: whose user.
        act: the function.
        limit_s: time limit in seconds.
        what: for messages.
        signals: whether the function sends signals; otherwise it uses files alone.

    Returns:
        False if the function returned False, else True.

    Raises:
        DirectoryError: it failed or did not end; a child that cannot be killed is left behind.
    """
    if job.uid == 0:
        raise DirectoryError(f"{what}: not done for jobs of root")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            if signals:
                os.setresgid(job.gid, job.gid, job.gid)
                os.setresuid(_NO_ACCOUNT, job.uid, _NO_ACCOUNT)
            else:
                _use_files_of(job.uid, job.gid)
            code = _SAID_NO if act() is False else 0
        except (OSError, SlurmError) as error:
            log.error("%s: %s", what, error)
        finally:
            os._exit(code)
    watch = os.pidfd_open(child)
    try:
        if not select.select([watch], [], [], limit_s)[0]:
            signal.pidfd_send_signal(watch, signal.SIGKILL)
            raise DirectoryError(f"{what}: not done within {limit_s:g} s")
        status = os.waitid(os.P_PIDFD, watch, os.WEXITED)
        if status is None or status.si_status not in (0, _SAID_NO):
            raise DirectoryError(f"{what}: failed, see the line above")
        return status.si_status == 0
    finally:
        os.close(watch)


class _Rights:
    """Gives this process a job's user's rights to files until `back`, without a child process, for a few short calls.

    The user can neither signal, trace nor slow it meanwhile, because all its other user ids stay root's.
    """

    def __init__(self, job: HookJob) -> None:
        if job.uid == 0:
            raise DirectoryError(f"job {job.job_id}: root has no directories of a job")
        self._groups = os.getgroups()
        os.setgroups([])
        _use_files_of(job.uid, job.gid)

    def back(self) -> None:
        _use_files_of(0, 0)
        os.setgroups(self._groups)


def _use_files_of(uid: int, gid: int) -> None:
    """Sets the ids that count for files (setfsuid(2)). With them the kernel takes root's capabilities for files away,
    and gives them back with 0. Python has no call for it."""
    import ctypes

    libc = ctypes.CDLL(None)
    for change, number in ((libc.setfsgid, gid), (libc.setfsuid, uid)):
        change.argtypes, change.restype = [ctypes.c_uint], ctypes.c_uint
        change(number)
        if (now := change(0xFFFFFFFF)) != number:  # an invalid number changes nothing, and returns the present one
            raise DirectoryError(f"{change.__name__}: got {now}, expected {number}")


def _move_aside(name: str, parent: str, above: int, job: HookJob) -> None:
    """Moves what is not the user's own out of the way, and removes it: a tree with the rights of whoever made it."""
    aside = f".holdfast-planted-{os.urandom(4).hex()}"
    os.rename(name, aside, src_dir_fd=above, dst_dir_fd=above)
    facts = os.lstat(aside, dir_fd=above)
    log.warning("%s/%s was not user %d's own but of uid %d: moved to %s", parent, name, job.uid, facts.st_uid, aside)
    try:
        if not stat.S_ISDIR(facts.st_mode):
            return os.unlink(aside, dir_fd=above)
        return os.rmdir(aside, dir_fd=above)
    except OSError:
        pass  # a directory that is not empty
    path, end_s = f"{parent}/{aside}", time.monotonic() + _CLEAR_S
    try:
        planter = HookJob(job_id=job.job_id, uid=facts.st_uid, gid=facts.st_gid, cluster=job.cluster)
        as_user(
            planter, lambda: remove_tree(path, most=_MOST_REMOVED, end_s=end_s), _CLEAR_S + _ENDS_S, f"remove {path}"
        )
    except DirectoryError as error:
        log.warning("%s; remove it by hand", error)


def _make(name: str, above: int, job: HookJob) -> None:
    """Makes the directory under a random name and sets its owner, then renames it."""
    fresh = f".holdfast-new-{os.urandom(8).hex()}"
    os.mkdir(fresh, 0o700, dir_fd=above)
    try:
        descriptor = os.open(fresh, _DIRECTORY, dir_fd=above)
        try:
            os.fchown(descriptor, job.uid, job.gid)
        finally:
            os.close(descriptor)
        if _is_there(name, above):
            raise FileExistsError
        os.rename(fresh, name, src_dir_fd=above, dst_dir_fd=above)  # replaces at most an empty directory
    except BaseException:
        try:
            os.rmdir(fresh, dir_fd=above)
        except OSError:
            pass
        raise


def _is_there(name: str, above: int) -> bool:
    try:
        os.lstat(name, dir_fd=above)
    except FileNotFoundError:
        return False
    return True


def _is_private(name: str, above: int, uid: int) -> bool:
    """Whether it is the user's own directory that nobody else can enter. Corrects a mode that is too wide."""
    try:
        descriptor = os.open(name, _DIRECTORY, dir_fd=above)
    except OSError:
        return False
    try:
        facts = os.fstat(descriptor)
        if facts.st_uid != uid:
            return False
        if facts.st_mode & 0o077:
            os.fchmod(descriptor, 0o700)
        return True
    finally:
        os.close(descriptor)
