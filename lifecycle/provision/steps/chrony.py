"""chrony keeps the nodes' clocks equal. munge rejects credentials of nodes whose clocks differ."""

from __future__ import annotations

from lifecycle.provision import apt
from lifecycle.provision.step import ProvisionedNode, Step

_CONF = "/etc/chrony/sources.d/90-holdfast.sources"
_AMAZON = "169.254.169.123"  # Amazon Time Sync, reachable from every instance


class Chrony(Step):
    """Installs chrony with the site's NTP servers, or Amazon Time Sync on EC2."""

    name = "chrony"

    def goal(self, node: ProvisionedNode) -> str:
        return f"chrony with {' '.join(self._servers(node)) or 'the distribution’s servers'}"

    def skip(self, node: ProvisionedNode) -> str:
        return "a container uses the clock of its host" if node.in_container else ""

    def is_done(self, node: ProvisionedNode) -> bool:
        return not apt.missing(node, ("chrony",)) and node.text(_CONF) == self._text(node)

    def apply(self, node: ProvisionedNode) -> None:
        if apt.missing(node, ("chrony",)):
            apt.install(node, ("chrony",))
        if self._text(node):
            node.write(_CONF, self._text(node))
        if node.has_systemd:
            node.run(("systemctl", "enable", "chrony"), timeout_s=60)
            node.run(("systemctl", "restart", "chrony"), timeout_s=60)

    def _servers(self, node: ProvisionedNode) -> tuple[str, ...]:
        return node.site.ntp or ((_AMAZON,) if node.instance else ())

    def _text(self, node: ProvisionedNode) -> str:
        return "".join(f"server {server} prefer iburst minpoll 4 maxpoll 4\n" for server in self._servers(node))
