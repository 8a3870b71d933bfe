"""HealthCheckProgram: checks the node, and drains it if it failed and the administrator allows draining.

It runs `holdfast node check` as a program, so that a check cannot harm the hook.
"""

from __future__ import annotations

import os
import sys
import time

from slurm.client import Slurm
from slurm.command import CommandError, run
from slurm.errors import SlurmError
from slurm.hooks.departures import clear_forgotten
from slurm.hooks.drains import OUT, drain_node, settle_drain
from slurm.hooks.epilog import HUNG
from slurm.hooks.hook import FIT, Hook
from slurm.hooks.log import log
from slurm.hooks.prolog import free_memory, why_no_job
from slurm.hooks.verdict import read_verdict

_FREE_S = 15.0  # for freeing the memory of jobs that have left
_ANSWER_S = 10.0  # for each answer of Slurm
_RESERVE_S = 6.0  # kept back for Slurm's answers and for freeing memory
_START_S = 5.0  # for Python to start on a busy node
_HAS_LOOKED = (0, 1)  # exit codes of `holdfast node check`; any other means that it could not begin
_BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}


def health(hook: Hook, slurm: Slurm | None = None) -> int:
    """Frees the memory of dead jobs, runs the checks, drains a node that failed. Slurm ignores the exit code.

    All nodes run it, so it asks Slurm for its own node alone until a node has to be drained. If Slurm does not answer,
    the checks run at the level for a busy node.

    Args:
        hook: this call.
        slurm: the cluster; None for the one of this node.
    """
    free_memory(hook, _FREE_S)
    slurm = slurm or Slurm(timeout_s=_ANSWER_S)
    node = None
    try:
        clear_forgotten(hook, slurm)
        node = slurm.node(hook.node)
    except SlurmError as error:
        log.error("%s", error)
    begin_s = time.time()
    _look(hook, "prolog" if node is None or {node.state, *node.flags} & _BUSY else hook.settings.check)
    if node is None:
        return FIT  # the next health check drains it
    most, draining = hook.settings.max_drained, hook.places.draining
    if held := settle_drain(
        slurm, node.name, most, draining, lambda why: why.startswith(HUNG) or bool(why_no_job(hook))
    ):
        log.warning("a drain that its hook did not live to look at again is taken back: %s", held)
        return FIT
    verdict = read_verdict(hook.places)
    if verdict.status == "unknown":
        log.info("verdict: %s", verdict.reason)
    # Also while it is drained for a reboot: Slurm removes every drain as the node registers. The next check drains it.
    if verdict.status != "critical" or node.flags & OUT:
        return FIT
    # Healing checks a node in a reservation (MAINT), in a job that ends if the node is drained. Of a failure that an
    # earlier check found, that job decides; it may be the check that is to be repeated.
    if "MAINTENANCE" in node.flags and verdict.failed_s < begin_s:
        log.info("under maintenance, so not drained for what an earlier check found: %s", verdict.reason)
        return FIT
    if hook.settings.drain != "on":
        log.warning("not fit: %s; `drain: on` in %s would drain it", verdict.reason, hook.places.settings_file)
        return FIT
    if held := drain_node(slurm, node.name, verdict.reason, most, draining):
        log.error("not fit, and not drained, %s: %s", held, verdict.reason)  # the next health check tries again
    else:
        log.error("drained: %s", verdict.reason)
    return FIT


def _look(hook: Hook, level: str) -> None:
    """Runs the checks, which write their verdict, within the hook's time limit."""
    left_s = max(1.0, hook.left_s - _RESERVE_S)
    argv = [sys.executable, "-I", "-m", "launcher", "node", "check", "--level", level]
    argv += ["--verdict", hook.places.verdict, "--within", f"{max(1.0, left_s - _START_S):.1f}"]
    if os.path.exists(hook.places.checks_file):
        argv += ["--config", hook.places.checks_file]
    try:
        done = run(argv, timeout_s=left_s, check=False)
    except CommandError as error:
        log.error("%s", error)
        return
    if done.returncode not in _HAS_LOOKED:
        log.error("no check was run: %s", " ".join(done.stderr.split())[-500:] or f"exit code {done.returncode}")
    elif done.stderr.strip():  # a verdict, but for example no metrics
        log.warning("%s", " ".join(done.stderr.split())[-500:])
