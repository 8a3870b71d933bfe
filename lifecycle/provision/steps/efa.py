"""Installs EFA's software with Amazon's installer: kernel module, libfabric, aws-ofi-nccl, Open MPI."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from lifecycle.provision.step import ProvisionedNode, Step, StepError
from lifecycle.versions import Pinned, ordered, pin

_INSTALLED = "/opt/amazon/efa_installed_packages"
_VERSION_LINE = "# EFA installer version:"
_FI_INFO = "/opt/amazon/efa/bin/fi_info"
_INSTALL_S = 1800.0


class Efa(Step):
    """Installs EFA's software in the pinned version. Without `efa` in node.yaml, an installed newer version is kept."""

    name = "efa"

    def goal(self, node: ProvisionedNode) -> str:
        pinned = self._pinned(node)
        return f"EFA installer {pinned.efa}: libfabric {pinned.libfabric}, aws-ofi-nccl {pinned.plugin}"

    def skip(self, node: ProvisionedNode) -> str:
        if node.site.container or node.site.efa:
            return ""
        return "" if node.efa_devices else "this node has no EFA interface; `efa: VERSION` in node.yaml installs anyway"

    def is_done(self, node: ProvisionedNode) -> bool:
        return self._suffices(node) and node.path(_FI_INFO).exists()

    def fetches(self, node: ProvisionedNode) -> list[tuple[str, ...]]:
        pinned = self._pinned(node)
        return [("efa", pinned.efa, pinned.efa_sha256)]

    def apply(self, node: ProvisionedNode) -> None:
        archive = node.fetch(*self.fetches(node)[0])
        with tempfile.TemporaryDirectory(prefix="holdfast-efa-", dir=archive.parent) as folder:
            node.run(("tar", "-xzf", str(archive), "-C", folder), timeout_s=300)
            script = Path(folder) / "aws-efa-installer" / "efa_installer.sh"
            if not script.is_file():
                raise StepError(
                    f"{archive}: the archive has no aws-efa-installer/efa_installer.sh, expected Amazon's installer; "
                    "remove the file, check `sha256` in node.yaml, and run again"
                )
            # The step `limits` sets the limits. A container can load no kernel module and has no EFA device to test.
            kernel = ("--skip-kmod", "--no-verify") if node.in_container else ()
            node.run(("bash", str(script), "-y", "--skip-limit-conf", *kernel), cwd=script.parent, timeout_s=_INSTALL_S)

    def verify(self, node: ProvisionedNode) -> None:
        got, wanted = installed_version(node), self._pinned(node).efa
        if not self._suffices(node):
            raise StepError(
                f"{_INSTALLED}: got version {got or 'none'}, expected {wanted}; see the installer's output in the log"
            )
        if not node.path(_FI_INFO).exists():
            raise StepError(f"{_FI_INFO}: missing although the installer succeeded; see its output in the log")
        if node.efa_devices and not node.in_container:
            found = node.run((_FI_INFO, "-p", "efa"), check=False)
            if found.returncode != 0:
                raise StepError(
                    f"{_FI_INFO} -p efa: got no device ({found.stderr.strip()}), expected {node.efa_devices}; "
                    "a new kernel module may need a reboot: reboot, then run again"
                )

    def _suffices(self, node: ProvisionedNode) -> bool:
        got, wanted = installed_version(node), self._pinned(node).efa
        is_free = not node.site.efa and re.match(r"\d", got)
        return ordered(got) >= ordered(wanted) if is_free else got == wanted

    def _pinned(self, node: ProvisionedNode) -> Pinned:
        return pin(efa=node.site.efa)


def installed_version(node: ProvisionedNode) -> str:
    """Version of the EFA installer that has run on this node; "" if none has."""
    for line in node.text(_INSTALLED).splitlines():
        if line.startswith(_VERSION_LINE):
            return line.removeprefix(_VERSION_LINE).strip()
    return ""
