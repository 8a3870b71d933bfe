"""Prolog: runs before a job begins on this node. It calls Slurm only when it is about to refuse the job."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING

from slurm.errors import SlurmError
from slurm.hooks.directories import DirectoryError, make_job_dir, make_user_dir, remove_job_dir
from slurm.hooks.hook import FIT, UNFIT, Hook, HookJob
from slurm.hooks.ledger import Ledger
from slurm.hooks.log import log
from slurm.hooks.places import write_of_root
from slurm.hooks.strays import kill_strays
from slurm.hooks.usage import usage
from slurm.hooks.verdict import read_verdict

if TYPE_CHECKING:
    from slurm.client import Slurm

_ASK_S = 4.0  # for each of four commands; together within the prolog's limit
_FREE_S = 2.0  # for freeing the memory of other jobs; this job waits meanwhile
_LEAST_FREE = 0.02  # share of the memory file system


def prolog(hook: Hook, slurm: Slurm | None = None) -> int:
    """Refuses the job on a node that failed its checks; otherwise makes the job's directories.

    Args:
        hook: this call.
        slurm: the cluster; None for the one of this node.

    Returns:
        UNFIT if a recent check failed or the local disk cannot be used, and draining is allowed within max_drained.
        Otherwise FIT, and the failure is only logged. Jobs of root always start, because the check of a
        repaired node is such a job. What users cause, such as full memory, refuses no job; the job gets a message.
    """
    job = hook.job
    reason = why_no_job(hook)
    if reason and job.uid != 0:  # root's jobs check and repair the node
        log.error("job %d: this node is not fit: %s", job.job_id, reason)
        if not (held := drain_or_reason(hook, reason, slurm)):
            return UNFIT
        log.warning("the job starts all the same: %s", held)
    ledger = Ledger(hook.places.ledger)
    entry = ledger.entry(job)
    ledger.begin(job, hook.left_s / 2)
    wrong = _prepare(hook, job) if job.uid != 0 else []
    if entry is not None and entry.keep_until_s is not None:
        kill_strays(job, hook.left_s / 8)
    free_memory(hook, _FREE_S)
    if wrong:
        wrong = _prepare(hook, job)  # it may have failed for lack of memory, which was freed just now
    for what in wrong:
        log.warning("job %d: %s", job.job_id, what)
    memory = hook.places.memory
    if any(memory in what for what in wrong) and os.path.isdir(memory):
        log.warning("%s is used by %s", memory, usage(memory))
    log.info("job %d of uid %d: ready", job.job_id, job.uid)
    return FIT


def _prepare(hook: Hook, job: HookJob) -> list[str]:
    """Makes the job's directories and the file that TaskProlog prints. Returns what is wrong."""
    memory, disk = hook.places.memory, hook.settings.local_disk
    exports, wrong = [], []
    try:
        make_user_dir(memory, job)
        exports.append(f"HOLDFAST_MEMORY_DIR={make_job_dir(memory, job)}")
        room = os.statvfs(memory)
        if room.f_bavail < _LEAST_FREE * room.f_blocks:
            free, whole = (blocks * room.f_frsize >> 20 for blocks in (room.f_bavail, room.f_blocks))
            wrong.append(f"{memory}: {free} of {whole} MiB free: checkpoints in memory may find no room")
    except DirectoryError as error:
        wrong.append(f"no memory of this node for checkpoints: {error}")
    try:
        if disk:
            exports.append(f"HOLDFAST_DISK_DIR={make_user_dir(disk, job)}")
    except DirectoryError as error:
        wrong.append(f"no local disk of this node for checkpoints: {error}")
    words = [f"export {path}" for path in exports] + [f"print holdfast: {hook.node}: {what}" for what in wrong]
    write_of_root(f"{hook.places.tasks}/{job.job_id}", "".join(f"{line}\n" for line in words), 0o644)
    return wrong


def drain_or_reason(hook: Hook, why: str, slurm: Slurm | None) -> str:
    """Drains the node with our reason, before Slurm drains it with its own, which healing would leave alone.

    Returns:
        Why the node may not be drained (`drain: off`, or max_drained); empty if it was drained.
    """
    if hook.settings.drain != "on":
        return f"`drain: on` in {hook.places.settings_file} keeps jobs away"
    from slurm.client import Slurm  # here, because a prolog rarely calls Slurm, whose documentation advises against it
    from slurm.hooks.drains import drain_node

    try:
        slurm = slurm or Slurm(timeout_s=_ASK_S)
        return drain_node(slurm, hook.node, why, hook.settings.max_drained, hook.places.draining)
    except SlurmError as error:
        return f"whether the node may be drained is not known: {error}"


def free_memory(hook: Hook, limit_s: float) -> None:
    """Removes the memory of jobs that left the node and were not requeued onto it in time.

    A user whose files take long to remove does not delay the others: each call begins with another job, and spends at
    most half of its remaining time on one job.

    Args:
        hook: this call.
        limit_s: time limit in seconds; later hooks remove the rest.
    """
    end_s = time.monotonic() + min(limit_s, hook.left_s / 2)
    ledger = Ledger(hook.places.ledger)
    due = [entry for entry in ledger if entry.is_due]
    first = os.getpid() % len(due) if due else 0
    for entry in due[first:] + due[:first]:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            break
        if (held := ledger.due(entry)) is None:
            continue
        try:
            kill_strays(entry.job, left_s / 8)
            if end_s - time.monotonic() < 0.75 * left_s:
                log.info("job %d, uid %d: more processes than can be ended now", entry.job.job_id, entry.job.uid)
            elif remove_job_dir(hook.places.memory, entry.job, left_s / 4):
                ledger.forget(entry)
                log.info("memory of job %d, uid %d: freed", entry.job.job_id, entry.job.uid)
            else:
                log.info("memory of job %d, uid %d: a part is freed", entry.job.job_id, entry.job.uid)
        except DirectoryError as error:
            log.error("%s; tried again before the next job", error)
        finally:
            ledger.release(held)  # a prolog of this job would wait until here


def why_no_job(hook: Hook) -> str:
    """Why this node should get no job; empty if no failure was observed. Users cannot cause such a failure."""
    verdict = read_verdict(hook.places)
    if verdict.status == "critical" and verdict.age_s <= hook.settings.verdict_age_s:
        return verdict.reason
    if verdict.status in ("critical", "unknown"):
        log.info(
            "verdict: %s", verdict.reason if verdict.status == "unknown" else f"{verdict.age_s:.0f} s old, ignored"
        )
    disk = hook.settings.local_disk
    if disk and not is_mounted(disk):
        return f"{disk}: no file system is mounted there"
    if disk and os.statvfs(disk).f_flag & os.ST_RDONLY:
        return f"{disk}: read-only"
    return ""


def is_mounted(path: str) -> bool:
    """Whether a file system is mounted on this directory."""
    try:
        here, above = os.lstat(path), os.lstat(f"{path}/..")
    except OSError:
        return False
    return stat.S_ISDIR(here.st_mode) and (here.st_dev != above.st_dev or here.st_ino == above.st_ino)
