"""FSx for Lustre, or any Lustre: its client, and the file system mounted."""

from __future__ import annotations

import platform

from lifecycle.provision import apt, fstab
from lifecycle.provision.site import Fsx
from lifecycle.provision.step import ProvisionedNode, Step, StepError
from slurm.command import CommandError

_MOUNT_S = 300.0


class Lustre(Step):
    """The Lustre file system, mounted now and at each boot.

    A file system linked to S3 loads its files when they are first read (lazy load): that needs `lfs hsm_restore` ahead
    of a job to be fast, and nothing of the client. Striping: new files of the root directory get `stripe_count`.
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
        return "mounts are the host's" if node.in_container else ""

    def is_done(self, node: ProvisionedNode) -> bool:
        fsx = self._fsx(node)
        at = node.mounted(fsx.mount)
        if at and at != self._source(fsx):
            raise StepError(
                f"{fsx.mount}: got {at} mounted there, expected {self._source(fsx)}; unmount it, or --skip lustre"
            )
        return bool(at) and fstab.holds(node, self._line(fsx)) and self._striped(node, fsx)

    def apply(self, node: ProvisionedNode) -> None:
        fsx = self._fsx(node)
        self._client(node)
        fstab.put(node, self._line(fsx))
        node.path(fsx.mount).mkdir(mode=0o755, parents=True, exist_ok=True)
        if not node.mounted(fsx.mount):
            try:
                node.run(("mount", fsx.mount), timeout_s=_MOUNT_S)
            except CommandError as error:
                raise StepError(
                    f"{self._source(fsx)}: cannot be mounted ({error.reason}: {error.result.stderr.strip()}); check "
                    "the name, and that the security group lets TCP 988 and 1018-1023 through, both ways"
                ) from None
        if not self._striped(node, fsx):
            node.run(("lfs", "setstripe", "-c", str(fsx.stripe_count), fsx.mount), timeout_s=60)

    def _client(self, node: ProvisionedNode) -> None:
        """Lustre's modules for the kernel that runs; a kernel they do not fit is said before anything is tried."""
        if node.run(("modprobe", "lustre"), check=False).returncode == 0:
            return
        packages = (f"lustre-client-modules-{platform.release()}", "lustre-client-utils")
        try:
            apt.install(node, packages)
        except StepError as error:
            raise StepError(
                f"no Lustre client for kernel {platform.release()} ({error}); add the FSx client repository "
                "(AWS: Installing the Lustre client), or boot a kernel that it has"
            ) from None
        node.run(("modprobe", "lustre"), timeout_s=60)

    def _striped(self, node: ProvisionedNode, fsx: Fsx) -> bool:
        if fsx.stripe_count is None:
            return True
        found = node.run(("lfs", "getstripe", "-d", "-c", fsx.mount), timeout_s=60, check=False).stdout.strip()
        return found == str(fsx.stripe_count)

    def _line(self, fsx: Fsx) -> str:
        # flock: torch and pip lock files; _netdev: only when the network is there.
        options = "defaults,noatime,flock,_netdev,nofail,x-systemd.automount,x-systemd.requires=network.service"
        return fstab.line(self._source(fsx), fsx.mount, "lustre", options)

    def _source(self, fsx: Fsx) -> str:
        return f"{fsx.dns}@tcp:/{fsx.mountname}"

    def _fsx(self, node: ProvisionedNode) -> Fsx:
        if node.site.fsx is None:
            raise StepError("lustre: got no `fsx` in node.yaml, expected its dns and mountname")
        return node.site.fsx
