"""Epilog: after a job has left this node, however it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm.hooks.departures import see_off
from slurm.hooks.hook import FIT, UNFIT, Hook
from slurm.hooks.log import log
from slurm.hooks.prolog import free_memory, may_not_drain

if TYPE_CHECKING:
    from slurm.client import Slurm

_FREE_S = 5.0  # for the memory of other jobs: the next one waits
HUNG = "processes of job"
"""How the reason of an epilog's drain begins: nothing but a reboot ends them."""


def epilog(hook: Hook, slurm: Slurm | None = None) -> int:
    """Sees the job off, and frees the memory of those before it.

    Args:
        hook: this call.
        slurm: the cluster; None for the one of this node.

    Returns:
        UNFIT where processes of the job cannot be killed: they hang in the kernel and hold memory and GPUs. As for
        prologs, only where the admin allows draining, within max_drained.
    """
    left = see_off(hook, hook.job)
    free_memory(hook, _FREE_S)
    if not left:
        return FIT
    why = f"{HUNG} {hook.job.job_id} hang in the kernel, reboot: {left[:20]}"
    log.error("%s", why)
    if held := may_not_drain(hook, why, slurm):
        log.warning("this node is not drained: %s", held)
        return FIT
    return UNFIT
