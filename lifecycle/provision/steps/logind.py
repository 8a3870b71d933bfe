"""Configures systemd-logind to keep users' files in /dev/shm. By default it removes them when the user logs out,
although the user's jobs may still need them.
"""

from __future__ import annotations

from lifecycle.provision.step import ProvisionedNode, Step

_DROP_IN = "/etc/systemd/logind.conf.d/90-holdfast.conf"
_TEXT = "[Login]\nRemoveIPC=no\n"
_PROGRAMS = ("/usr/lib/systemd/systemd-logind", "/lib/systemd/systemd-logind")


class Logind(Step):
    """Writes RemoveIPC=no to a separate file. To restore systemd's default, remove the file."""

    name = "logind"

    def goal(self, node: ProvisionedNode) -> str:
        return f"RemoveIPC=no in {_DROP_IN}"

    def skip(self, node: ProvisionedNode) -> str:
        return "" if any(node.path(program).exists() for program in _PROGRAMS) else "no systemd-logind here"

    def is_done(self, node: ProvisionedNode) -> bool:
        return node.text(_DROP_IN) == _TEXT

    def apply(self, node: ProvisionedNode) -> None:
        node.write(_DROP_IN, _TEXT)
        if node.has_systemd:  # sessions outlive a restart of logind
            node.run(("systemctl", "reload-or-try-restart", "systemd-logind.service"))
