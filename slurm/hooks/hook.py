"""The frame around every hook that runs as root: a time limit, a log, and a validated environment.

The body runs in a child process. If the body hangs (a dead mount, a stuck kernel), the child is killed, or abandoned if
it cannot be killed. The hook then ends with the exit code that drains no node.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import TYPE_CHECKING

from slurm.errors import SlurmError
from slurm.hooks.log import log
from slurm.hooks.places import Places
from slurm.hooks.settings import HookSettings, read_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIT = 0
UNFIT = 100  # the script then exits with 1, and Slurm drains the node; see entry.py
_MAX_JOB_ID = 0x7FFFFFFF
_ALONE_S = 1.0  # after the limit: for a body whose parent was killed, which slurmd does when it stops


class EnvironmentRefused(SlurmError):
    """A value in a hook's environment is not valid and is not used."""


class HookJob:
    """The job for which a hook is called.

    Attributes:
        job_id: its number; in an array or heterogeneous job, that of the part.
        uid: its user.
        gid: the user's group.
        cluster: Slurm's name of the cluster.
    """

    def __init__(self, *, job_id: int, uid: int, gid: int, cluster: str) -> None:
        self.job_id = job_id
        self.uid = uid
        self.gid = gid
        self.cluster = cluster

    @property
    def run(self) -> str:
        """The name of the job's directory, the same in all requeues. The launcher uses the same name."""
        return f"slurm-{self.cluster}-{self.job_id}"

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> HookJob:
        """Reads the variables that slurmd sets. Names, comments and paths, which users choose, are not read.

        Raises:
            EnvironmentRefused: a number or the cluster's name is missing or cannot be one.
        """
        cluster = env.get("SLURM_CLUSTER_NAME", "")
        if not _is_name(cluster):
            raise EnvironmentRefused(f"SLURM_CLUSTER_NAME: got {cluster[:64]!r}, expected letters, digits, '-' and '_'")
        return cls(
            cluster=cluster,
            job_id=_number(env, "SLURM_JOB_ID", _MAX_JOB_ID),
            uid=_number(env, "SLURM_JOB_UID", 0xFFFFFFFE),
            gid=_number(env, "SLURM_JOB_GID", 0xFFFFFFFE) if "SLURM_JOB_GID" in env else _group_of(env),
        )


class Hook:
    """The argument of a hook's body.

    Attributes:
        places: paths of the hooks' files.
        settings: the site's settings.
        env: Slurm's environment; read it through `job` and `node`.
        deadline_s: end of the hook's time, on the monotonic clock.
    """

    def __init__(self, *, places: Places, settings: HookSettings, env: Mapping[str, str], deadline_s: float) -> None:
        self.places = places
        self.settings = settings
        self.env = env
        self.deadline_s = deadline_s

    @property
    def job(self) -> HookJob:
        return HookJob.from_env(self.env)

    @property
    def node(self) -> str:
        """The node's name in Slurm."""
        name = self.env.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
        if not _is_name(name):
            raise EnvironmentRefused(f"node name: got {name!r}, expected letters, digits, '.', '_' and '-'")
        return name

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline_s - time.monotonic())


def run_hook(name: str, body: Callable[[Hook], int], *, places: Places, env: Mapping[str, str], limit_s: float) -> int:
    """Runs a hook's body to its end or to its limit.

    Args:
        name: the hook's name in the log.
        body: the function to run; returns FIT or UNFIT.
        places: paths of the hooks' files.
        env: Slurm's environment.
        limit_s: time limit in seconds, below Slurm's own limit for this hook.

    Returns:
        The body's result; FIT if it failed or did not end, so that no node is drained for that.
    """
    deadline_s = time.monotonic() + limit_s
    output, output_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    answer, answers = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _hold_only(output_end)
        _be_child(name, body, places, env, deadline_s, answers)
    os.close(output_end)
    os.close(answers)
    try:
        if select.select([answer], [], [], limit_s)[0]:  # a millisecond before the child has ended
            code = os.read(answer, 1)
            return code[0] if code else FIT
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.write(2, f"holdfast {name}: did not end within {limit_s:g} s: given up\n".encode())
        return FIT
    finally:
        os.close(answer)
        try:
            os.write(2, os.read(output, 1 << 16))
        except OSError:
            pass  # the child gave no answer, or its pipe is closed
        os.close(output)


def _hold_only(output_end: int) -> None:
    """Closes slurmd's pipes; otherwise slurmd would wait for an abandoned child."""
    null = os.open("/dev/null", os.O_RDONLY)
    for descriptor, source in ((0, null), (1, output_end), (2, output_end)):
        os.dup2(source, descriptor)


def _be_child(
    name: str, body: Callable[[Hook], int], places: Places, env: Mapping[str, str], deadline_s: float, answers: int
) -> None:
    code = FIT
    try:
        os.setsid()
        signal.setitimer(signal.ITIMER_REAL, _ALONE_S + max(0.0, deadline_s - time.monotonic()))
        os.umask(0o022)
        log.open(places.log, name)
        settings, problem = read_settings(places)
        if problem:
            log.error("%s", problem)
        code = body(Hook(places=places, settings=settings, env=env, deadline_s=deadline_s))
    except SlurmError as error:
        log.error("%s", error)
    except BaseException:
        log.exception("the hook itself failed")
    finally:
        try:
            os.write(answers, bytes((code,)))
        except OSError:
            pass  # slurmd has killed the parent, which waited for the answer
        os._exit(code)


def _is_name(text: str) -> bool:
    """Letters, digits, '.', '_' and '-', the first one a letter or digit."""
    plain = text.replace(".", "").replace("_", "").replace("-", "")
    return len(text) <= 255 and text.isascii() and text[:1].isalnum() and plain.isalnum()


def _number(env: Mapping[str, str], name: str, most: int) -> int:
    text = env.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= most):
        raise EnvironmentRefused(
            f"{name}: got {text[:64]!r}, expected a number up to {most}; is this called by slurmd?"
        )
    return int(text)


def _group_of(env: Mapping[str, str]) -> int:
    """The group of the job's user as the node knows it; Slurm sets none in older releases."""
    import pwd  # here, because it may ask the site's directory service, which may be slow

    uid = _number(env, "SLURM_JOB_UID", 0xFFFFFFFE)
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
