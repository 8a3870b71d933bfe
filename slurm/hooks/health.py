"""HealthCheckProgram: looks at the node again, and drains it where the admin allows it.

It runs `holdfast node check` as a program, so that nothing a check imports or does can harm the hook.
"""

from __future__ import annotations

import logging
import sys

from slurm.client import Slurm
from slurm.command import CommandError, run
from slurm.hooks.hook import FIT, Hook
from slurm.hooks.prolog import free_memory
from slurm.hooks.verdict import read_verdict

log = logging.getLogger("holdfast.hooks")

TAG = "holdfast:"  # begins the reason of every drain of ours: who may undo it sees whose it was
_RESERVE_S = 6.0  # for Slurm's answers, and to free memory
_REBOOTS = {"REBOOT_ISSUED", "REBOOT_REQUESTED"}  # drained by Slurm for the reboot, to be resumed after it
_BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}


def health(hook: Hook) -> int:
    """Frees what dead jobs kept in memory, checks, drains a node that failed. Slurm ignores the exit code."""
    free_memory(hook)
    slurm = Slurm()
    node = next((found for found in slurm.nodes() if found.name == hook.node), None)
    if node is None:
        log.error("Slurm knows no node %s", hook.node)
        return FIT
    level = "prolog" if {node.state, *node.flags} & _BUSY else hook.settings.check
    argv = [sys.executable, "-m", "launcher", "node", "check", "--level", level, "--verdict", str(hook.places.verdict)]
    try:
        run(argv, timeout_s=max(1.0, hook.left_s - _RESERVE_S), check=False)
    except CommandError as error:
        log.error("%s", error)
    verdict = read_verdict(hook.places)
    if verdict.status == "unknown":
        log.info("verdict: %s", verdict.reason)
    if verdict.status != "critical" or ("DRAIN" in node.flags and not node.flags & _REBOOTS):
        return FIT
    if hook.settings.drain != "on":
        log.warning("not fit: %s; `drain: on` in %s would drain it", verdict.reason, hook.places.settings_file)
        return FIT
    log.error("drained: %s", verdict.reason)
    slurm.drain(hook.node, f"{TAG} {verdict.reason}"[:250])
    return FIT
