"""Installs the distribution's packages that training and the other steps need."""

from __future__ import annotations

from lifecycle.provision import apt
from lifecycle.provision.step import ProvisionedNode, Step

_ALWAYS = ("ca-certificates", "curl", "pciutils", "kmod", "xz-utils", "util-linux", "procps")
_BUILD = ("build-essential", "git")


class Packages(Step):
    """Installs the packages of every node, a compiler on nodes with GPUs, and the site's own packages."""

    name = "packages"

    def goal(self, node: ProvisionedNode) -> str:
        return f"installed: {' '.join(self._wanted(node))}"

    def is_done(self, node: ProvisionedNode) -> bool:
        return not apt.missing(node, self._wanted(node))

    def apply(self, node: ProvisionedNode) -> None:
        apt.install(node, self._wanted(node))

    def _wanted(self, node: ProvisionedNode) -> tuple[str, ...]:
        disk = ("mdadm", f"{'xfsprogs' if node.site.nvme.fs == 'xfs' else 'e2fsprogs'}")
        return (*_ALWAYS, *disk, *(_BUILD if node.has_gpu else ()), *node.site.packages)
