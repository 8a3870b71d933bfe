"""The work after a job has left this node: in its epilog, or in a health check if Slurm did not call our epilog.

After an epilog that failed, Slurm calls no further one. Without the health check, the job's processes and memory would
then stay for ever.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from slurm.hooks.directories import holds_memory
from slurm.hooks.hook import Hook, HookJob
from slurm.hooks.ledger import Ledger
from slurm.hooks.log import log
from slurm.hooks.strays import kill_strays

if TYPE_CHECKING:
    from slurm.client import Slurm

DRIVERS = ("/sys/module/nvidia", "/sys/module/efa")
"""Modules whose messages are looked for in the kernel's log, which is not read where none of them is loaded."""


def clear_up(hook: Hook, job: HookJob) -> list[int]:
    """Kills the job's leftover processes, keeps its memory for a requeue, records kernel messages.

    Returns:
        Its processes that cannot be killed.
    """
    left = kill_strays(job, hook.left_s / 2)
    try:
        os.unlink(f"{hook.places.tasks}/{job.job_id}")
    except FileNotFoundError:
        pass
    ledger = Ledger(hook.places.ledger)
    entry = ledger.entry(job)
    if entry is None:
        return left
    if holds_memory(hook.places.memory, job):
        keep_s = hook.settings.keep_memory_s
        ledger.end(entry, keep_s)
        log.info("job %d: memory kept for %g s", job.job_id, keep_s)
    else:
        ledger.forget(entry)
    if any(map(_is_there, DRIVERS)):
        from slurm.hooks.incidents import record_incidents

        record_incidents(hook.places.incidents, hook.node, job, entry.started_s)
    return left


def clear_forgotten(hook: Hook, slurm: Slurm) -> None:
    """Does the same for jobs that have left without our epilog.

    For a job that may come back, because it waits or runs elsewhere, only the time for which its memory is kept begins.
    Its prolog may run at this moment, and that kills the leftover processes.

    Raises:
        CommandError: Slurm does not answer.
    """
    from slurm.records import RecordError  # here, because most epilogs do not need it

    for entry in (ledger := Ledger(hook.places.ledger)):
        if entry.keep_until_s is not None:
            continue
        try:
            job = slurm.job(entry.job.job_id)
        except RecordError as error:  # a user chose a name or comment that cannot be told from Slurm's own output
            log.warning("whether job %d is here is not known: %s", entry.job.job_id, error)
            continue
        if job is None or job.has_ended:
            log.warning("job %d left without our epilog", entry.job.job_id)
            clear_up(hook, entry.job)
        elif job.state == "PENDING" or hook.node not in job.nodes:
            log.warning("job %d left without our epilog, and may come back", entry.job.job_id)
            ledger.end(entry, hook.settings.keep_memory_s)


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except OSError:
        return False
    return True
