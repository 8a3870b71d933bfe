"""Lets NCCL find aws-ofi-nccl, which EFA's installer installs. Without it NCCL silently uses sockets instead of EFA."""

from __future__ import annotations

from pathlib import Path

from lifecycle.provision.step import ProvisionedNode, Step, StepError

_CONF = "/etc/ld.so.conf.d/90-holdfast-ofi-nccl.conf"
_HOME = "/opt/amazon/ofi-nccl"
_LIBRARIES = ("libnccl-net.so", "libnccl-net-ofi.so")  # the second name since installer 1.48


class OfiNccl(Step):
    """Adds the directory of aws-ofi-nccl to the dynamic linker's search path."""

    name = "ofi-nccl"

    def goal(self, node: ProvisionedNode) -> str:
        return f"aws-ofi-nccl of {_HOME} on the dynamic linker's search path"

    def skip(self, node: ProvisionedNode) -> str:
        if node.site.container or node.site.efa or node.efa_devices:
            return ""
        return "no EFA interface here"

    def is_done(self, node: ProvisionedNode) -> bool:
        folder = plugin_folder(node)
        return bool(folder) and node.text(_CONF) == f"{folder}\n"

    def apply(self, node: ProvisionedNode) -> None:
        folder = plugin_folder(node)
        if not folder:
            raise StepError(
                f"{_HOME}: got no {' or '.join(_LIBRARIES)}, expected one from the EFA installer; run the step `efa` "
                "again (`--only efa`), with installer 1.40 or newer"
            )
        node.write(_CONF, f"{folder}\n")
        node.run(("ldconfig",), timeout_s=120)


def plugin_folder(node: ProvisionedNode) -> str:
    """Directory of the plugin's library; "" if it is not installed."""
    home = node.path(_HOME)
    found = [path for name in _LIBRARIES for path in sorted(home.glob(f"lib*/**/{name}"))]
    return str(Path("/") / found[0].parent.relative_to(node.root)) if found else ""
