"""Installs the Lustre client and mounts a Lustre file system, such as FSx for Lustre."""

from __future__ import annotations

import platform

from lifecycle.provision import apt, fstab
from lifecycle.provision.site import Fsx
from lifecycle.provision.step import ProvisionedNode, Step, StepError
from slurm.command import CommandError

_MOUNT_S = 300.0


class Lustre(Step):
    """Mounts the Lustre file system now and at each boot. New files below its root get `stripe_count`.

    A file system linked to S3 loads each file when it is first read (lazy load). `lfs hsm_restore` before a job makes
    its first reads fast. The client needs no setting for that.
    """

    name = "lustre"

    def goal(self, node: ProvisionedNode) -> str:
        fsx = node.site.fsx
        if fsx is None:
            return "a Lustre file system"
        stripes = "" if fsx.stripe_count is None else f", stripe count {fsx.stripe_count}"
        return f"{fsx.mount}: {self._source(fsx)}{stripes}"

    def skip(self, node: ProvisionedNode) -> str:
        if node.site.fsx is None:
            return "no `fsx` in node.yaml"
        return "not in a container: the host mounts file systems" if node.in_container else ""

    def is_done(self, node: ProvisionedNode) -> bool:
        fsx = self._fsx(node)
        at = node.mounted(fsx.mount)
        if at and not self._is_source(node, fsx, at):
            raise StepError(
                f"{fsx.mount}: got {at} mounted there, expected {self._source(fsx)}; unmount it, or --skip lustre"
            )
        return bool(at) and fstab.holds(node, self._line(fsx)) and self._striped(node, fsx)

    def apply(self, node: ProvisionedNode) -> None:
        fsx = self._fsx(node)
        self._client(node)
        fstab.put(node, self._line(fsx))
        node.path(fsx.mount).mkdir(mode=0o755, parents=True, exist_ok=True)
        node.run(("stat", f"{fsx.mount}/."), timeout_s=_MOUNT_S, check=False)  # systemd mounts it here after a reboot
        if not node.mounted(fsx.mount):
            try:
                node.run(("mount", fsx.mount), timeout_s=_MOUNT_S)
            except CommandError as error:
                raise StepError(
                    f"{self._source(fsx)}: cannot be mounted ({error.reason}: {error.result.stderr.strip()}); check "
                    "`fsx` in node.yaml, and that the security group allows TCP 988 and 1018-1023 in both directions"
                ) from None
        if not self._striped(node, fsx):
            node.run(("lfs", "setstripe", "-c", str(fsx.stripe_count), fsx.mount), timeout_s=60)

    def _client(self, node: ProvisionedNode) -> None:
        """Installs and loads Lustre's modules for the running kernel. An error names a kernel that has no modules."""
        if node.run(("modprobe", "lustre"), check=False).returncode == 0:
            return
        packages = (f"lustre-client-modules-{platform.release()}", "lustre-client-utils")
        try:
            apt.install(node, packages)
        except StepError as error:
            raise StepError(
                f"no Lustre client for kernel {platform.release()} ({error}); add the FSx client repository (AWS: "
                "Installing the Lustre client), or boot a kernel for which that repository has modules"
            ) from None
        node.run(("modprobe", "lustre"), timeout_s=60)

    def _striped(self, node: ProvisionedNode, fsx: Fsx) -> bool:
        if fsx.stripe_count is None:
            return True
        found = node.run(("lfs", "getstripe", "-d", "-c", fsx.mount), timeout_s=60, check=False).stdout.strip()
        return found == str(fsx.stripe_count)

    def _line(self, fsx: Fsx) -> str:
        # flock: torch and pip lock files. _netdev: systemd mounts only after the network is up.
        options = "defaults,noatime,flock,_netdev,nofail,x-systemd.automount,x-systemd.requires=network.service"
        return fstab.line(self._source(fsx), fsx.mount, "lustre", options)

    def _is_source(self, node: ProvisionedNode, fsx: Fsx, mounted: str) -> bool:
        """Whether /proc/mounts names this file system: by an address, because mount.lustre resolves the DNS name."""
        host, _, mountname = mounted.partition("@tcp:/")
        if mountname != fsx.mountname:
            return False
        known = node.run(("getent", "ahosts", fsx.dns), check=False).stdout.splitlines()
        return host in (fsx.dns, *(line.split()[0] for line in known))

    def _source(self, fsx: Fsx) -> str:
        return f"{fsx.dns}@tcp:/{fsx.mountname}"

    def _fsx(self, node: ProvisionedNode) -> Fsx:
        if node.site.fsx is None:
            raise StepError("lustre: got no `fsx` in node.yaml, expected its dns and mountname")
        return node.site.fsx
