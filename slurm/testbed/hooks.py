"""Holdfast's Slurm hooks on the testbed's machines.

The machines share the host's file system, so the hooks of each machine get a directory of their own as "/". A reboot
restarts the machine's slurmd and not the host.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from slurm.conf import hook_lines
from slurm.hooks.entry import scripts
from slurm.hooks.places import Places
from slurm.hooks.settings import HookSettings
from slurm.hooks.settings import write_settings as compile_settings
from slurm.testbed.plan import ClusterPlan, daemon_name

HEALTH_INTERVAL_S = 5
"""Seconds; real clusters check every few minutes."""

# For Slurm a node has rebooted when slurmd starts with -b. The old slurmd must have ended by then. The script runs as
# a child of the old slurmd, so it continues in a session of its own. slurmctld accepts the reboot only if slurmd starts
# in a later second than the reboot was requested; so the script waits. The new slurmd writes to the machine's log.
_REBOOT = """\
#!/bin/bash
# The testbed's RebootProgram: slurmd of this machine ends and starts again as after a boot.
exec </dev/null >>{logs}/"$(uname -n)".log 2>&1
setsid bash -c '
pkill -KILL -x "{slurmd}"
while pgrep -x "{slurmd}" >/dev/null; do sleep 0.05; done
ordered=$SECONDS
until (( SECONDS > ordered + 1 )); do sleep 0.05; done
exec slurmd -D -b -N "$(uname -n)"
' &
"""


def install_hooks(plan: ClusterPlan) -> list[str]:
    """Writes the hook scripts and every node's hooks.yaml. Does nothing for a cluster without hooks.

    Returns:
        The lines for slurm.conf.
    """
    if not plan.hooks:
        return []
    plan.hooks_dir.mkdir()
    texts = scripts(root=str(plan.hooks_root("%n")), slurm_conf=plan.slurm_conf)
    reboot = _REBOOT.format(logs=shlex.quote(str(plan.log_dir)), slurmd=daemon_name(plan.nodes[0]))
    for name, text in (texts | {_reboot_script(plan).name: reboot}).items():
        script = plan.hooks_dir / name
        script.write_text(text)
        script.chmod(0o755)
    for node in plan.nodes:
        write_settings(plan, node, {})
    lines = hook_lines(plan.hooks_dir, HEALTH_INTERVAL_S)
    return [line for line in lines if not line.startswith("SchedulerParameters=")]  # the testbed sets its own


def write_settings(plan: ClusterPlan, machine: str, settings: Mapping[str, str | float]) -> Path:
    """Writes a machine's hooks.yaml, and compiles it.

    Returns:
        The directory that the machine's hooks use as "/".
    """
    places = Places(plan.hooks_root(machine))
    file = Path(places.settings_file)
    file.parent.mkdir(parents=True, exist_ok=True)
    ours: dict[str, str | float] = {"check": "prolog", "reboot": str(_reboot_script(plan))}
    known = ours | dict(settings)
    text = "".join(f"{key}: {value}\n" for key, value in known.items())
    file.write_text(text)
    compile_settings(places, HookSettings(**known), text)  # type: ignore[arg-type]
    return Path(places.root)


def _reboot_script(plan: ClusterPlan) -> Path:
    return plan.hooks_dir / "power-cycle.sh"
