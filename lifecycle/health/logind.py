"""systemd's logind: does it remove a running job's shared memory when its user logs out?"""

from __future__ import annotations

import re

from lifecycle.health.check import Level, Node, NotHere, check
from lifecycle.health.finding import Finding, fit, weak

_PLACES = ("/usr/lib/systemd", "/usr/local/lib/systemd", "/run/systemd", "/etc/systemd")  # the later wins
_REMOVE_IPC = re.compile(r"^\s*RemoveIPC\s*=\s*(\S+)", re.MULTILINE | re.IGNORECASE)
_FALSE = ("no", "false", "off", "0", "n", "f")


@check("remove_ipc", Level.QUICK, limit_s=2.0)
def remove_ipc(node: Node) -> Finding:
    """A user's logout leaves the shared memory of their jobs alone (RemoveIPC=no, logind.conf(5))."""
    if not node.path("/run/systemd/system").is_dir():
        raise NotHere("systemd does not run here")
    value = "yes, the default"
    for text in _settings(node):
        for found in _REMOVE_IPC.findall(text):
            value = found
    if value.lower() in _FALSE:
        return fit(f"RemoveIPC={value}", "no")
    return weak(
        f"RemoveIPC={value}",
        "no: else a job loses its checkpoints in memory when its user logs out of the node",
        "RemoveIPC=no under [Login] in /etc/systemd/logind.conf.d/holdfast.conf; systemctl restart systemd-logind",
    )


def _settings(node: Node) -> list[str]:
    """The texts of all settings files, those that count first at the front: logind.conf, then its drop-ins by name."""
    main = [node.path(f"{place}/logind.conf") for place in _PLACES]
    drop_ins = {path.name: path for place in _PLACES for path in node.path(f"{place}/logind.conf.d").glob("*.conf")}
    files = [path for path in main if path.is_file()][-1:] + [drop_ins[name] for name in sorted(drop_ins)]
    return [path.read_text(errors="replace") for path in files]
