"""Installs the hook scripts that slurm.conf names, and compiles the hooks' settings."""

from __future__ import annotations

import sys
from pathlib import Path

import slurm
from holdfast.base.files import publish
from lifecycle.provision.hook_settings import read_hook_settings
from lifecycle.provision.step import ProvisionedNode, Step, StepError
from slurm.errors import SlurmError
from slurm.hooks.entry import DIRECTORY, scripts
from slurm.hooks.places import Places
from slurm.hooks.settings import compiled_text
from slurm.hooks.trust import check_trusted, installation

_COMPILED = Places().compiled_settings
_SETTINGS = (
    "# Settings of holdfast's Slurm hooks: docs/admin/hooks.md. Keys that are not set have their default.\n"
    "# After a change, run `holdfast node provision --only hooks` on the node.\n"
)


class Hooks(Step):
    """Writes the scripts to /etc/slurm/holdfast. `holdfast node slurm-conf` prints the lines for slurm.conf."""

    name = "hooks"

    def goal(self, node: ProvisionedNode) -> str:
        return f"Slurm's hooks in {DIRECTORY} (slurm.conf: holdfast node slurm-conf)"

    def skip(self, node: ProvisionedNode) -> str:
        if node.in_container:
            return "not in a container: the host runs slurmd"
        return "" if node.site.role == "compute" else f"a {node.site.role} node runs no jobs"

    def is_done(self, node: ProvisionedNode) -> bool:
        source = self._settings(node)
        if not source.exists():
            return False
        same = node.text(_COMPILED) == compiled_text(*read_hook_settings(source))
        same = same and all(node.text(f"{DIRECTORY}/{name}") == text for name, text in scripts().items())
        return same and not self._mistrust(node, *_installed(), DIRECTORY)

    def apply(self, node: ProvisionedNode) -> None:
        if reason := self._mistrust(node, *_installed()):
            raise StepError(reason)
        for name, text in scripts().items():
            publish(node.path(f"{DIRECTORY}/{name}"), text.encode(), 0o755)
        settings = self._settings(node)
        if not settings.exists():  # settings of the administrator are kept
            mount = node.site.nvme.mount
            text = _SETTINGS + (f"local_disk: {mount}\n" if node.mounted(mount) else "")
            node.write("/" + str(settings.relative_to(node.root)), text)
        publish(node.path(_COMPILED), compiled_text(*read_hook_settings(settings)).encode(), 0o644)

    def verify(self, node: ProvisionedNode) -> None:
        if reason := self._mistrust(node, DIRECTORY):
            raise StepError(reason)
        super().verify(node)

    @staticmethod
    def _mistrust(node: ProvisionedNode, *paths: Path) -> str:
        """Why root must not run these files, because other users can change them; "" if root may."""
        if node.root != Path("/"):
            return ""  # below another root, hooks use another interpreter than this process
        try:
            check_trusted(*paths)
        except SlurmError as error:
            return str(error)
        return ""

    @staticmethod
    def _settings(node: ProvisionedNode) -> Path:
        return Path(Places(node.root).settings_file)


def _installed() -> list[Path]:
    return installation(Path(sys.executable), Path(slurm.__file__).parent)
