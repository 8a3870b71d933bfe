"""The host of the clusters: its requirements, the clusters on it, and the lock for building and removing them."""

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
_DRAFT = RUN_ROOT / ".draft"  # a run directory that is being made or removed


def clusters() -> tuple[str, ...]:
    """Names of the clusters on this host, including those that are only partly built."""
    with contextlib.suppress(FileNotFoundError):
        return tuple(sorted(path.name for path in RUN_ROOT.iterdir() if not path.name.startswith(".")))
    return ()


def describe(name: str, size: int, user: str, *, hooks: bool, switches: int, gpus: int) -> ClusterPlan:
    """Choose a free index for a new cluster and write its plan.json, before anything else is made.

    Raises:
        TestbedError: the cluster exists already, or the host has `MAX_CLUSTERS` clusters.
    """
    target = RUN_ROOT / name
    if target.exists():
        raise TestbedError(
            f"cluster {name!r} exists, perhaps only in part; `holdfast cluster down --name {name}` removes it"
        )
    taken = {plan.index for other in clusters() if (plan := load_plan(RUN_ROOT / other))}
    present = links(command.run)
    free = (index for index in range(MAX_CLUSTERS) if index not in taken)
    plans = (
        ClusterPlan(name=name, index=index, size=size, user=user, hooks=hooks, switches=switches, gpus=gpus)
        for index in free
    )
    plan = next((plan for plan in plans if plan.bridge not in present), None)
    if plan is None:
        raise TestbedError(
            f"this machine has {MAX_CLUSTERS} clusters, the maximum; `holdfast cluster down` removes one"
        )
    remove_tree(plan.data_dir)  # a reboot of the host removes a cluster's run directory, but not its data
    _DRAFT.mkdir()
    plan.save(_DRAFT)
    _DRAFT.rename(target)
    return plan


def forget(plan: ClusterPlan) -> None:
    """Remove a cluster's run directory, as the last part of the cluster."""
    with contextlib.suppress(FileNotFoundError):  # another `down` has removed it
        plan.run_dir.rename(_DRAFT)  # first renamed, so that a killed `down` leaves no run directory without plan.json
    remove_tree(_DRAFT)
    with contextlib.suppress(OSError):  # the directory has other clusters' data
        DATA_ROOT.rmdir()


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Hold the lock for building and removing clusters on this host. Files made under the lock have umask 022.

    The lock is on the directory `RUN_ROOT`, which is removed with the last cluster. So after a wait the function
    checks that the directory it has locked is still the one at that path.

    Raises:
        TestbedError: another process holds the lock for longer than `LOCK_TIMEOUT_S`.
    """
    locked = -1

    def is_mine() -> bool:
        nonlocal locked
        with contextlib.suppress(FileExistsError):
            RUN_ROOT.mkdir()
            RUN_ROOT.chmod(0o755)  # mkdir's mode depends on the umask
        try:
            locked = os.open(RUN_ROOT, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another process has removed it since
            return False
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(locked), os.stat(RUN_ROOT)):
                return True
        os.close(locked)
        return False

    wait_until(is_mine, LOCK_TIMEOUT_S, f"{RUN_ROOT} is locked: another `cluster up` or `cluster down` did not end")
    umask = os.umask(0o022)
    try:
        remove_tree(_DRAFT)  # left by a process that died while it held the lock
        yield
    finally:
        with contextlib.suppress(OSError):  # the directory has clusters
            RUN_ROOT.rmdir()
        os.umask(umask)
        os.close(locked)


def remove_tree(directory: Path) -> None:
    """Remove a directory into which processes of the host may still write.

    Raises:
        TestbedError: the directory still exists after 10 s.
    """

    def gone() -> bool:
        shutil.rmtree(directory, ignore_errors=True)
        return not directory.exists()

    wait_until(gone, 10.0, f"{directory} could not be removed")


def default_user() -> str:
    """The user who called sudo, else `nobody`. Both exist, so no account has to be made."""
    user = os.environ.get("SUDO_USER", "root")
    return "nobody" if user == "root" else user


def as_user(argv: Sequence[str], who: pwd.struct_passwd) -> tuple[str, ...]:
    """The argument list with which root runs a program as a user, where that user can read this project."""
    become = ("setpriv", f"--reuid={who.pw_uid}", f"--regid={who.pw_gid}", "--clear-groups", "--inh-caps=-all")
    return in_view((*become, *argv), who.pw_uid)


def check_root() -> None:
    """Check that this process runs as root.

    Raises:
        TestbedError: it runs as another user.
    """
    if os.geteuid() != 0:
        raise TestbedError("a cluster on this machine needs root (namespaces, a network bridge): run it with sudo")


def check_programs() -> None:
    """Check that Slurm and the other programs of the testbed are installed.

    Raises:
        TestbedError: some are missing.
    """
    missing = [program for program in PROGRAMS if shutil.which(program, path=SYSTEM_PATH) is None]
    if missing:
        raise TestbedError(
            f"not installed: {', '.join(missing)}; on Debian: apt-get install slurm-wlm slurm-wlm-basic-plugins "
            "slurm-client munge libpmix2 libpmix-dev iproute2"
        )


def check_interpreter(user: str) -> None:
    """Check that a user can run this Python with this project, as the jobs will.

    Raises:
        TestbedError: the user cannot.
    """
    try:
        probe = as_user([sys.executable, "-c", "import slurm.command"], account(user))
        command.run(probe, env={"PATH": SYSTEM_PATH}, cwd="/")
    except CommandError as error:
        stderr = " ".join(error.result.stderr.split())[-200:]
        raise TestbedError(
            f"user {user} cannot run {sys.executable} with this project ({error.reason}: {stderr}); make the virtual "
            "environment from /usr/bin/python3, and put it and the project where every user can read them"
        ) from error
