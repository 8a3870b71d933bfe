"""This machine as the host of clusters: what it must have, what is taken on it, and who may change that now."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm import command
from slurm.command import CommandError
from slurm.testbed.daemons import PROGRAMS, SYSTEM_PATH
from slurm.testbed.namespaces import links, wait_until
from slurm.testbed.plan import DATA_ROOT, MAX_CLUSTERS, RUN_ROOT, ClusterPlan, TestbedError, account, load_plan
from slurm.testbed.view import in_view

LOCK_TIMEOUT_S = 120.0
_DRAFT = RUN_ROOT / ".draft"  # a description that is being written or removed


def clusters() -> tuple[str, ...]:
    """Names of the clusters on this machine, half-built ones too."""
    with contextlib.suppress(FileNotFoundError):
        return tuple(sorted(path.name for path in RUN_ROOT.iterdir() if not path.name.startswith(".")))
    return ()


def describe(name: str, size: int, user: str, *, hooks: bool, switches: int, gpus: int) -> ClusterPlan:
    """Choose what is free on this machine and put it on record, before anything is made."""
    target = RUN_ROOT / name
    if target.exists():
        raise TestbedError(f"cluster {name!r} exists, or its up died: holdfast cluster down --name {name} removes it")
    taken = {plan.index for other in clusters() if (plan := load_plan(RUN_ROOT / other))}
    present = links(command.run)
    free = (index for index in range(MAX_CLUSTERS) if index not in taken)
    plans = (
        ClusterPlan(name=name, index=index, size=size, user=user, hooks=hooks, switches=switches, gpus=gpus)
        for index in free
    )
    plan = next((plan for plan in plans if plan.bridge not in present), None)
    if plan is None:
        raise TestbedError(f"there are {MAX_CLUSTERS} clusters on this machine; take one down first")
    remove_tree(plan.data_dir)  # of a cluster that ended with the machine it ran on: a reboot empties /run only
    _DRAFT.mkdir()
    plan.save(_DRAFT)
    _DRAFT.rename(target)
    return plan


def forget(plan: ClusterPlan) -> None:
    """Take a cluster off the record, after all else of it is gone."""
    with contextlib.suppress(FileNotFoundError):  # taken down twice
        plan.run_dir.rename(_DRAFT)  # at once: half removed it would be neither there nor gone
    remove_tree(_DRAFT)
    with contextlib.suppress(OSError):  # other clusters' data is there
        DATA_ROOT.rmdir()


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Let one process at a time build or remove clusters on this machine.

    The run root itself is locked, and goes when nothing is left in it; so one that waited must look whether the
    directory it has locked is still the one in place. What is made under the lock can be read by all users.
    """
    locked = -1

    def is_mine() -> bool:
        nonlocal locked
        with contextlib.suppress(FileExistsError):
            RUN_ROOT.mkdir()
            RUN_ROOT.chmod(0o755)  # whatever our umask
        try:
            locked = os.open(RUN_ROOT, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # gone already
            return False
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(locked), os.stat(RUN_ROOT)):
                return True
        os.close(locked)
        return False

    wait_until(is_mine, LOCK_TIMEOUT_S, f"{RUN_ROOT} is locked: another cluster up or down did not end")
    umask = os.umask(0o022)
    try:
        remove_tree(_DRAFT)  # left by somebody who died while holding the lock
        yield
    finally:
        with contextlib.suppress(OSError):  # clusters are there
            RUN_ROOT.rmdir()
        os.umask(umask)
        os.close(locked)


def remove_tree(directory: Path) -> None:
    """Remove a directory, also while somebody on the host still writes files into it."""

    def gone() -> bool:
        shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()

    wait_until(gone, 10.0, f"{directory} could not be removed")


def default_user() -> str:
    """The user behind sudo, or `nobody`, which every Linux has: so no account is made or changed."""
    user = os.environ.get("SUDO_USER", "root")
    return "nobody" if user == "root" else user


def as_user(argv: Sequence[str], who: pwd.struct_passwd) -> tuple[str, ...]:
    """The argument list by which root runs a program as an ordinary user who can reach this project."""
    become = ("setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups", "--inh-caps=-all")
    return in_view((*become, *argv), who.pw_uid)


def check_root() -> None:
    """Raise an error unless we are root."""
    if os.geteuid() != 0:
        raise TestbedError("a cluster on this machine needs root (namespaces, a network bridge): run it with sudo")


def check_programs() -> None:
    """Raise an error unless Slurm and what it needs here are installed."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=SYSTEM_PATH) is None]
    if missing:
        raise TestbedError(
            f"not installed: {', '.join(missing)}; on Debian: apt-get install slurm-wlm slurm-wlm-basic-plugins "
            "slurm-client munge libpmix2 libpmix-dev iproute2"
        )


def check_interpreter(user: str) -> None:
    """Jobs run this Python and this code as the ordinary user: better to learn here that they cannot."""
    try:
        probe = as_user([sys.executable, "-c", "import slurm.command"], account(user))
        command.run(probe, env={"PATH": SYSTEM_PATH}, cwd="/")
    except CommandError as error:
        said = " ".join(error.result.stderr.split())[-200:]
        raise TestbedError(
            f"user {user} cannot run {sys.executable} with this project ({error.reason}: {said}); make "
            "the virtual environment from /usr/bin/python3 and keep it and the project where every user may read"
        ) from error
