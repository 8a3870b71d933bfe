"""Configures slurmd on this node: its limits, the source of slurm.conf, and munge's key."""

from __future__ import annotations

import os
import pwd

from lifecycle.provision import apt
from lifecycle.provision.step import ProvisionedNode, Step, StepError

_DROP_IN = "/etc/systemd/system/slurmd.service.d/90-holdfast.conf"
_DEFAULTS = "/etc/default/slurmd"
_KEY = "/etc/munge/munge.key"
_PACKAGES = ("slurmd", "slurm-client", "munge")


class Slurmd(Step):
    """Starts slurmd with the limits that training needs. With `conf_server`, slurmd gets slurm.conf from slurmctld."""

    name = "slurmd"

    def goal(self, node: ProvisionedNode) -> str:
        server = node.site.slurm.conf_server
        later = "" if node.site.slurm.start else "; another service starts it"
        return f"slurmd with memlock {node.site.memlock}{f', slurm.conf from {server}' if server else ''}{later}"

    def skip(self, node: ProvisionedNode) -> str:
        if node.in_container:
            return "not in a container: the host runs slurmd"
        return "" if node.site.role == "compute" else f"a {node.site.role} node has no slurmd"

    def is_done(self, node: ProvisionedNode) -> bool:
        files = all(node.text(path) == text for path, text in self._files(node).items())
        return files and self._key_is_right(node) and not (node.site.slurm.install and apt.missing(node, _PACKAGES))

    def apply(self, node: ProvisionedNode) -> None:
        if node.site.slurm.install and apt.missing(node, _PACKAGES):
            apt.install(node, _PACKAGES)
        for path, text in self._files(node).items():
            node.write(path, text)
        if not self._key_is_right(node):
            self._put_key(node)
        if node.has_systemd:
            node.run(("systemctl", "daemon-reload"), timeout_s=60)
            if node.site.slurm.munge_key:
                node.run(("systemctl", "restart", "munge"), timeout_s=60)
            if node.site.slurm.start:
                node.run(("systemctl", "enable", "slurmd"), timeout_s=60)
                node.run(("systemctl", "restart", "slurmd"), timeout_s=120)

    def verify(self, node: ProvisionedNode) -> None:
        super().verify(node)
        if node.has_systemd and node.site.slurm.start:
            found = node.run(("systemctl", "is-active", "slurmd"), check=False).stdout.strip()
            if found != "active":
                raise StepError(
                    f"slurmd: got {found or 'no answer'}, expected active; see `journalctl -u slurmd -n 50`"
                )

    def _files(self, node: ProvisionedNode) -> dict[str, str]:
        memlock = node.site.memlock
        in_bytes = "infinity" if memlock == "unlimited" else str(int(memlock) * 1024)
        # Jobs inherit slurmd's limits (PropagateResourceLimits can only lower them).
        unit = ["[Service]", f"LimitMEMLOCK={in_bytes}", f"LimitNOFILE={node.site.nofile}", "LimitSTACK=infinity"]
        files = {_DROP_IN: "\n".join(unit) + "\n"}
        if node.site.slurm.conf_server:
            files[_DEFAULTS] = f'SLURMD_OPTIONS="--conf-server {node.site.slurm.conf_server}"\n'
        return files

    def _wanted_key(self, node: ProvisionedNode) -> bytes:
        path = node.path(node.site.slurm.munge_key)
        try:
            return path.read_bytes()
        except OSError as error:
            raise StepError(
                f"{path}: munge's key cannot be read ({error.strerror}); check `slurm.munge_key` in node.yaml"
            ) from None

    def _key_is_right(self, node: ProvisionedNode) -> bool:
        if not node.site.slurm.munge_key:
            return True
        key = node.path(_KEY)
        return key.exists() and key.read_bytes() == self._wanted_key(node) and key.stat().st_mode & 0o077 == 0

    def _put_key(self, node: ProvisionedNode) -> None:
        """Writes the key to a temporary file that only the user munge can read, and renames it."""
        key = node.path(_KEY)
        temporary = key.with_name(".munge.key.holdfast")
        temporary.unlink(missing_ok=True)
        key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self._wanted_key(node))
            file.flush()
            os.fsync(descriptor)
        owner = pwd.getpwnam("munge")
        os.chown(temporary, owner.pw_uid, owner.pw_gid)
        temporary.replace(key)
