"""enroot and pyxis run Slurm jobs in containers (`srun --container-image`)."""

from __future__ import annotations

import tempfile

from lifecycle.provision import apt
from lifecycle.provision.step import ProvisionedNode, Step

_CONF = "/etc/enroot/enroot.conf.d/90-holdfast.conf"
_PLUGIN = "/usr/local/lib/slurm/spank_pyxis.so"
_PLUGSTACK = "/etc/slurm/plugstack.conf.d/pyxis.conf"


class Containers(Step):
    """Installs enroot with its data on the node's local disk, and builds pyxis against this node's Slurm."""

    name = "containers"

    def goal(self, node: ProvisionedNode) -> str:
        return f"enroot in the users' own directories on {node.site.nvme.mount}, pyxis in {_PLUGSTACK}"

    def skip(self, node: ProvisionedNode) -> str:
        if not node.site.enroot:
            return "no `enroot: true` in node.yaml"
        return "not in a container: the host runs the containers" if node.in_container else ""

    def is_done(self, node: ProvisionedNode) -> bool:
        files = all(node.text(path) == text for path, text in self._files(node).items())
        return files and node.path(_PLUGIN).exists() and not apt.missing(node, ("enroot",))

    def fetches(self, node: ProvisionedNode) -> list[tuple[str, ...]]:
        packages = ("enroot", "enroot-caps") if apt.missing(node, ("enroot",)) else ()
        sources = () if node.path(_PLUGIN).exists() else ("pyxis",)
        return [(artifact,) for artifact in (*packages, *sources)]

    def apply(self, node: ProvisionedNode) -> None:
        if apt.missing(node, ("enroot",)):
            for artifact in ("enroot", "enroot-caps"):
                apt.install_file(node, node.fetch(artifact))
        if not node.path(_PLUGIN).exists():
            with tempfile.TemporaryDirectory(prefix="holdfast-pyxis-") as folder:
                node.run(("tar", "-xzf", str(node.fetch("pyxis")), "-C", folder, "--strip-components=1"))
                node.run(("make", "install"), cwd=folder, timeout_s=600)
        for path, text in self._files(node).items():
            node.write(path, text)

    def _files(self, node: ProvisionedNode) -> dict[str, str]:
        # The prolog makes this directory with mode 0700, so no other user can make or read directories below it.
        own = f"{node.site.nvme.mount}/holdfast-$(id -u)"
        settings = {
            "ENROOT_RUNTIME_PATH": f"{own}/enroot/run",
            "ENROOT_CACHE_PATH": f"{own}/enroot/cache",
            "ENROOT_DATA_PATH": f"{own}/enroot/data",
            "ENROOT_TEMP_PATH": own,  # enroot makes the other three
        }
        return {
            _CONF: "".join(f"{key} {value}\n" for key, value in settings.items()),
            _PLUGSTACK: f"required {_PLUGIN}\n",
        }
