"""RebootProgram: called by slurmd once no job is left on the node (`scontrol reboot`)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from slurm.command import CommandError, run
from slurm.hooks.hook import FIT, Hook
from slurm.hooks.log import log

COMMANDS: Sequence[Sequence[str]] = (
    ("/usr/bin/systemctl", "reboot"),
    ("/sbin/shutdown", "-r", "now"),
    ("/sbin/reboot", "-f"),  # if the init system hangs
)


def reboot(hook: Hook) -> int:
    """Reboots by the administrator's program; without one, by the init system, then by the kernel."""
    log.info("rebooting node %s", hook.node)
    for argv in [(hook.settings.reboot,)] if hook.settings.reboot else COMMANDS:
        if not os.access(argv[0], os.X_OK):
            continue
        try:
            run(argv, timeout_s=max(1.0, hook.left_s / 2))
            return FIT
        except CommandError as error:
            log.error("%s", error)
    log.error("this node does not reboot by itself; power-cycle it")
    return FIT
