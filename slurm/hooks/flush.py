"""Flushes an ended job's memory on this node to its lower tiers, if the job asked for that.

Root only starts a process of the job's user. The process has the Python of this installation, an environment of three
variables, no inherited descriptor, and a control group of its own with the job's limits (scope.py). No hook waits for
it, and it ends by itself. If the job comes back, its prolog kills the control group, and so does the hook that frees
the memory. On a node without control groups they find the process by SLURM_JOB_ID (strays.py).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import select
import signal
import sys
from itertools import islice
from pathlib import Path

from slurm.errors import SlurmError
from slurm.hooks.directories import DirectoryError, as_user, job_dir
from slurm.hooks.hook import HookJob
from slurm.hooks.log import log
from slurm.hooks.scope import FlushLimits, Scope

_REQUEST = "on_job_end.json"  # left by the job's checkpoint agents (ckpt/epilog/request.py)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_ENTRIES = 10_000  # limit of entries that are read in the job's directory
_NICE = 19  # the next job on the node has priority
_END_S = 10.0  # for the kernel to end a scope's processes
_ASK_S = 10.0  # for the controller to report the job's limits
_LAST_WORDS_S = 10  # for the process to log that its time is over, before it is killed


def start_flush(memory: str, job: HookJob, within_s: float, limit_s: float) -> bool:
    """Starts the flush, if the job left a request for it.

    Args:
        memory: the directory in which nodes keep training state in memory.
        job: the job, which has left the node.
        within_s: time limit of the process, seconds.
        limit_s: time limit for reading the request, seconds.

    Returns:
        Whether the flush was started.
    """
    path = Path(job_dir(memory, job))

    def is_asked() -> bool:
        return (path / _REQUEST).is_file() or any(
            (below / _REQUEST).is_file() for below in islice(path.iterdir(), _MOST_ENTRIES)
        )

    try:
        if not as_user(job, is_asked, limit_s, f"look into {path}"):
            return False
    except DirectoryError as error:
        log.error("%s; its memory is only kept", error)
        return False
    _detach(job, [sys.executable, "-I", "-m", "ckpt.epilog", str(path), "--within", f"{within_s:g}"], within_s)
    log.info("job %d: what it has only in memory goes to its lower tiers, within %g s", job.job_id, within_s)
    return True


def _detach(job: HookJob, argv: list[str], within_s: float) -> None:
    """Runs a program as the job's user, in a scope of its own, watched by a detached process of root's.

    The watching process holds none of slurmd's descriptors, so no hook waits for it.
    """
    between = os.fork()
    if between == 0:
        with contextlib.suppress(BaseException):
            os.setsid()
            if os.fork() == 0:
                _let_go()
                _watch(job, argv, within_s)
        os._exit(0)
    os.waitpid(between, 0)


def _watch(job: HookJob, argv: list[str], within_s: float) -> None:
    """Starts the program. When it ends or its time is over, kills what is left in its scope."""
    scope = Scope(job)
    scope.end(_END_S)  # an earlier flush of this job may still run
    limits = _limits(job)
    child = os.fork()
    if child == 0:
        try:
            if not scope.enter(limits):
                log.warning("job %d: no control group here: its flush is known by its environment alone", job.job_id)
            _become(job, within_s)
            os.execve(argv[0], argv, _environment(job))
        finally:
            os._exit(1)
    watch = os.pidfd_open(child)
    select.select([watch], [], [], within_s + _LAST_WORDS_S)
    scope.end(_END_S)


def _limits(job: HookJob) -> FlushLimits:
    """The job's limits according to the controller, because the job's own control group is gone by now.

    No hook waits for the answer. Users cannot influence it: it is the allocation.
    """
    from slurm.client import Slurm  # here, because few hooks need it

    try:
        found = Slurm(timeout_s=_ASK_S).job(job.job_id)
    except SlurmError as error:
        log.warning("job %d: its limits are not known: %s", job.job_id, error)
        found = None
    if found is None:
        return FlushLimits(memory_bytes=None, cpus=None)
    return FlushLimits(memory_bytes=found.memory_per_node_bytes, cpus=found.cpus_per_node)


def _let_go() -> None:
    """Closes all inherited descriptors except that of the hooks' log."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != log.descriptor:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _become(job: HookJob, within_s: float) -> None:
    """Gives up root irrevocably."""
    signal.alarm(int(within_s) + _LAST_WORDS_S)  # stays set after exec; a directory service may hang
    os.chdir("/")
    os.umask(0o077)
    os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cpu_s = int(within_s * (os.cpu_count() or 1)) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    try:
        os.initgroups(pwd.getpwuid(job.uid).pw_name, job.gid)  # a group may own the shared tier
    except (KeyError, OSError):
        os.setgroups([])
    os.setgid(job.gid)
    os.setuid(job.uid)


def _environment(job: HookJob) -> dict[str, str]:
    return {"PATH": _PATH, "LANG": "C.UTF-8", "SLURM_JOB_ID": str(job.job_id)}
