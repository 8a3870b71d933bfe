"""Epilog: after a job has left this node, however it ended."""

from __future__ import annotations

import os

from slurm.hooks.directories import holds_memory
from slurm.hooks.hook import FIT, UNFIT, Hook
from slurm.hooks.incidents import record_incidents
from slurm.hooks.ledger import Ledger
from slurm.hooks.log import log
from slurm.hooks.prolog import free_memory
from slurm.hooks.strays import kill_strays


def epilog(hook: Hook) -> int:
    """Ends what the job left running, keeps its memory for a requeue, has it flushed, notes the kernel's complaints.

    Returns:
        UNFIT where processes of the job cannot be killed: they hang in the kernel and hold memory and GPUs.
    """
    job = hook.job
    left = kill_strays(job, hook.left_s / 2)
    try:
        os.unlink(f"{hook.places.tasks}/{job.job_id}")
    except FileNotFoundError:
        pass
    ledger = Ledger(hook.places.ledger)
    entry = ledger.entry(job)
    if entry is not None:
        if holds_memory(hook.places.memory, job, hook.left_s / 2):
            keep_s, flush_s = hook.settings.keep_memory_s, hook.settings.flush_memory_s
            ledger.end(entry, keep_s)
            from slurm.hooks.flush import start_flush

            if flush_s > 0 and start_flush(hook.places.memory, job, flush_s, hook.left_s / 2):
                keep_s = max(keep_s, flush_s)
                ledger.end(entry, keep_s)
            log.info("job %d: memory kept for %g s", job.job_id, keep_s)
        else:
            ledger.forget(entry)
        record_incidents(hook.places.incidents, hook.node, job, entry.started_s)
    free_memory(hook)
    if left:
        log.error("job %d: processes %s hang in the kernel; reboot the node", job.job_id, left[:20])
        return UNFIT
    return FIT
