"""Epilog: after a job has left this node, however it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm.hooks.departures import clear_up
from slurm.hooks.hook import FIT, UNFIT, Hook
from slurm.hooks.log import log
from slurm.hooks.prolog import drain_or_reason, free_memory

if TYPE_CHECKING:
    from slurm.client import Slurm

_FREE_S = 5.0  # for freeing the memory of other jobs; the next job waits meanwhile
HUNG = "processes of job"
"""The beginning of the reason of an epilog's drain. Only a reboot ends such processes."""


def epilog(hook: Hook, slurm: Slurm | None = None) -> int:
    """Does the work after the job's end, and frees the memory of earlier jobs.

    Args:
        hook: this call.
        slurm: the cluster; None for the one of this node.

    Returns:
        UNFIT if processes of the job cannot be killed: they hang in the kernel and hold memory and GPUs. As in the
        prolog, only if the administrator allows draining, and within max_drained.
    """
    left = clear_up(hook, hook.job)
    free_memory(hook, _FREE_S)
    if not left:
        return FIT
    why = f"{HUNG} {hook.job.job_id} hang in the kernel, reboot: {left[:20]}"
    log.error("%s", why)
    if held := drain_or_reason(hook, why, slurm):
        log.warning("this node is not drained: %s", held)
        return FIT
    return UNFIT
