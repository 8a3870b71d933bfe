"""This project's hooks on the testbed's machines: one disk for all, so each has its own root; no reboot of the host."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from slurm.conf import hook_lines
from slurm.hooks.entry import scripts
from slurm.hooks.places import Places
from slurm.testbed.plan import ClusterPlan, daemon_name

HEALTH_INTERVAL_S = 5
"""Seconds; real clusters check every few minutes."""

# A machine reboots when its slurmd starts anew and says so (-b). The old one has to be gone before, and its child that
# runs this script may end with it. Slurm takes a node for rebooted only if it started in a later second than the order
# to reboot was given, and else waits for it in vain. What the new one says goes where the old one's words went.
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
    """Writes the scripts and the nodes' settings; the lines for slurm.conf. Nothing for a cluster without hooks."""
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
    """Writes a machine's hooks.yaml; returns what stands for "/" in the files of its hooks."""
    places = Places(plan.hooks_root(machine))
    file = Path(places.settings_file)
    file.parent.mkdir(parents=True, exist_ok=True)
    ours: dict[str, str | float] = {"check": "prolog", "reboot": str(_reboot_script(plan))}
    text = "".join(f"{key}: {value}\n" for key, value in (ours | dict(settings)).items())
    file.write_text(text)
    return Path(places.root)


def _reboot_script(plan: ClusterPlan) -> Path:
    return plan.hooks_dir / "power-cycle.sh"
