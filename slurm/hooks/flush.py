"""What an ended job has only in this node's memory goes to its lower tiers, where the job asked for it.

Root starts that and does nothing of it: a process of the job's user does, with the Python of this installation, an
environment of our own and no descriptor of ours. Nobody waits for it. It ends by itself; the job's prolog, should the
job come back, and whoever frees its memory know it by SLURM_JOB_ID and kill it (strays.py).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import signal
import sys
from itertools import islice
from pathlib import Path

from slurm.hooks.directories import DirectoryError, as_user, job_dir
from slurm.hooks.hook import HookJob
from slurm.hooks.log import log

_REQUEST = "on_job_end.json"  # left by the job's checkpoint agents (ckpt/job_end/request.py)
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_ENTRIES = 10_000  # of the job's directory that are looked at
_NICE = 19  # the next job comes first
_LAST_WORDS_S = 10  # for the process to say that it is late, before it is ended


def start_flush(memory: str, job: HookJob, within_s: float, limit_s: float) -> bool:
    """Starts it, unless the job left no word that it wants this.

    Args:
        memory: where nodes keep training state in memory.
        job: the job, which has left the node.
        within_s: seconds that the process may take.
        limit_s: seconds that finding out may take.

    Returns:
        Whether it was started.
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
    _detach(job, [sys.executable, "-I", "-m", "ckpt.job_end", str(path), "--within", f"{within_s:g}"], within_s)
    log.info("job %d: what it has only in memory goes to its lower tiers, within %g s", job.job_id, within_s)
    return True


def _detach(job: HookJob, argv: list[str], within_s: float) -> None:
    """Runs a program as the job's user, in a session of its own, as nobody's child."""
    between = os.fork()
    if between == 0:
        with contextlib.suppress(BaseException):
            os.setsid()
            if os.fork() == 0:
                _become(job, within_s)
                os.execve(argv[0], argv, _environment(job))
        os._exit(0)
    os.waitpid(between, 0)


def _become(job: HookJob, within_s: float) -> None:
    """Gives up root for good, and everything that was root's."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):
                os.close(int(name))
    signal.alarm(int(within_s) + _LAST_WORDS_S)  # outlives the exec: a directory service may hang
    os.chdir("/")
    os.umask(0o077)
    os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    cpu_s = int(within_s * (os.cpu_count() or 1)) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    try:
        os.initgroups(pwd.getpwuid(job.uid).pw_name, job.gid)  # the shared directory may be a group's
    except (KeyError, OSError):
        os.setgroups([])
    os.setgid(job.gid)
    os.setuid(job.uid)


def _environment(job: HookJob) -> dict[str, str]:
    return {"PATH": _PATH, "LANG": "C.UTF-8", "SLURM_JOB_ID": str(job.job_id)}
