"""Names: whether the node can resolve its own name and those of the hosts that it needs."""

from __future__ import annotations

import os
import re

from lifecycle.health.check import CheckedNode, Level, check
from lifecycle.health.finding import Finding, critical, ok, warning
from slurm.command import CommandError

_CONTROLLER = re.compile(r"^\s*SlurmctldHost\s*=\s*([^\s(#]+)", re.MULTILINE | re.IGNORECASE)
_CONFS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/opt/slurm/etc/slurm.conf")
_SLOW_S = 1.0
_LIMIT_S = 4.0


@check("names", Level.QUICK, limit_s=20.0)
def names(node: CheckedNode) -> Finding:
    """The names of the node, of Slurm's controllers and of what the site names resolve at once."""
    missing, slow, asked = [], [], (os.uname().nodename, *_controllers(node), *node.settings.names)
    for name in dict.fromkeys(asked):
        try:
            done = node.command("getent", "ahosts", "--", name, timeout_s=_LIMIT_S)
        except CommandError as error:
            missing.append(f"{name} ({'unknown' if error.result.returncode == 2 else error.reason})")
            continue
        if done.seconds > _SLOW_S:
            slow.append(f"{name} took {done.seconds:.1f} s")
    expected = f"an address within {_SLOW_S:g} s"
    if missing:
        return critical(", ".join(missing), expected, "look at /etc/hosts, /etc/resolv.conf and the DNS server")
    if slow:
        return warning(", ".join(slow), expected, "a DNS server does not answer: see resolvectl or /etc/resolv.conf")
    return ok(", ".join(dict.fromkeys(asked)), expected)


def _controllers(node: CheckedNode) -> list[str]:
    for conf in _CONFS:
        try:
            return _CONTROLLER.findall(node.read(conf))
        except OSError:
            continue
    return []
