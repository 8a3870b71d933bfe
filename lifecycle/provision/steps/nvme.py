"""Formats and mounts the node's local disks as one file system.

A device is formatted only if all these hold: it has no signature of a file system, partition table, RAID, LVM or swap
(blkid -p), no partitions and no holders; it is not mounted; and the kernel grants exclusive use (O_EXCL). If one of
these cannot be determined, the device is not formatted.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Sequence
from typing import Any

from lifecycle.provision import fstab
from lifecycle.provision.step import ProvisionedNode, Step, StepError

LABEL = "holdfast"
_INSTANCE_STORE = "Amazon EC2 NVMe Instance Storage"
_ARRAY = f"/dev/md/{LABEL}"
_NOTHING_FOUND = 2  # blkid(8): "if the specified token was not found, or no (specified) devices could be identified"
_MKFS_S = 600.0


class Nvme(Step):
    """Makes one file system on the local disks and mounts it now and at each boot. Several disks become a RAID 0."""

    name = "nvme"

    def goal(self, node: ProvisionedNode) -> str:
        site = node.site.nvme
        return f"{site.mount}: {site.fs} over {' '.join(site.devices) or 'the instance store'}"

    def skip(self, node: ProvisionedNode) -> str:
        if node.in_container:
            return "not in a container: the host mounts the disks"
        if node.site.role != "compute":
            return f"a {node.site.role} node needs no local disk"
        if self._devices(node) or self._has_file_system(node):
            return ""
        return "no instance store on this node, and no `nvme.devices` in node.yaml"

    def is_done(self, node: ProvisionedNode) -> bool:
        source = node.mounted(node.site.nvme.mount)
        if source and not self._is_ours(node, source):
            return True  # mounted by a service of the image (HyperPod, DLAMI) or by the administrator: kept as it is
        return bool(source) and fstab.holds(node, self._line(node))

    def apply(self, node: ProvisionedNode) -> None:
        mount = node.site.nvme.mount
        source = node.mounted(mount)
        if source and not self._is_ours(node, source):
            return
        if not source and not self._has_file_system(node):
            self._format(node, self._device(node))
        fstab.put(node, self._line(node))
        node.path(mount).mkdir(mode=0o755, parents=True, exist_ok=True)
        if not node.mounted(mount):
            self._settle(node)
            node.run(("mount", f"LABEL={LABEL}", mount), timeout_s=120)

    def _line(self, node: ProvisionedNode) -> str:
        # nofail: the instance store is empty after a stop and start, and the node must boot without it.
        options = "defaults,noatime,nofail,x-systemd.device-timeout=30s"
        return fstab.line(f"LABEL={LABEL}", node.site.nvme.mount, node.site.nvme.fs, options)

    def _is_ours(self, node: ProvisionedNode, device: str) -> bool:
        found = node.run(("blkid", "-c", "/dev/null", "-o", "value", "-s", "LABEL", device), check=False)
        return found.stdout.strip() == LABEL

    def _has_file_system(self, node: ProvisionedNode) -> bool:
        """Whether a file system of this step exists, for example after a reboot. First assembles this step's array."""
        if self._members(node):
            self._assemble(node)
        return node.run(("blkid", "-c", "/dev/null", "-L", LABEL), check=False).returncode == 0

    def _device(self, node: ProvisionedNode) -> str:
        """The device to format: the only disk, or a RAID 0 array of all disks, which is made here."""
        devices = self._devices(node)
        if len(devices) > 1 and self._members(node) == list(devices):
            return _ARRAY  # an earlier run was killed between mdadm and mkfs
        for device in devices:
            self._refuse_used(node, device)
        if len(devices) == 1:
            return devices[0]
        layout = ("--level=0", f"--raid-devices={len(devices)}", f"--name={LABEL}", "--homehost=any")
        node.run(("mdadm", "--create", _ARRAY, *layout, "--run", *devices), timeout_s=120)
        return _ARRAY

    def _format(self, node: ProvisionedNode, device: str) -> None:
        # Checked again here: a new array may show the signatures of an older one on the same disks. mkfs gets no -f.
        self._refuse_used(node, device)
        node.run((f"mkfs.{node.site.nvme.fs}", "-q", "-L", LABEL, device), timeout_s=_MKFS_S)

    def _members(self, node: ProvisionedNode) -> list[str]:
        """The devices that belong to an array of this step. mdadm writes array names as HOST:NAME."""
        found = {device: self._signatures(node, device) for device in self._devices(node)}
        return [
            device
            for device, signs in found.items()
            if signs.get("TYPE") == "linux_raid_member" and signs.get("LABEL", "").rpartition(":")[2] == LABEL
        ]

    def _assemble(self, node: ProvisionedNode) -> None:
        """Assembles the array if the kernel has not done so at boot. mdadm fails if it is assembled already."""
        if not node.path(_ARRAY).exists():
            node.run(("mdadm", "--assemble", _ARRAY, *self._members(node)), check=False)

    def _settle(self, node: ProvisionedNode) -> None:
        """Waits for udev, which makes the symbolic link that `mount LABEL=` uses."""
        if node.has_systemd:
            node.run(("udevadm", "settle", "--timeout=30"), timeout_s=60)

    def _devices(self, node: ProvisionedNode) -> Sequence[str]:
        if node.site.nvme.devices:
            return node.site.nvme.devices
        found = json.loads(node.run(("lsblk", "--json", "--nodeps", "--paths", "-o", "NAME,MODEL,TYPE")).stdout)
        disks: list[dict[str, Any]] = found["blockdevices"]
        return sorted(disk["name"] for disk in disks if (disk["model"] or "").strip() == _INSTANCE_STORE)

    def _signatures(self, node: ProvisionedNode, device: str) -> dict[str, str]:
        """The signatures that blkid finds on a device, by blkid's keys (TYPE, LABEL, ...); empty if there are none.

        Raises:
            StepError: blkid cannot read the device.
        """
        found = node.run(("blkid", "-p", "-o", "export", device), check=False)
        if found.returncode == _NOTHING_FOUND:
            return {}
        if found.returncode != 0:
            raise StepError(
                f"{device}: blkid cannot read its signatures ({found.stderr.strip() or found.returncode}); "
                "not formatted. If its data can be lost, clear it by hand with `wipefs -a`"
            )
        return dict(line.split("=", 1) for line in found.stdout.splitlines() if "=" in line)

    def _refuse_used(self, node: ProvisionedNode, device: str) -> None:
        """Raises StepError if there is any sign that the device is in use; see the top of this module."""
        path = os.path.realpath(node.path(device))
        advice = (
            "not formatted. If its data can be lost, clear it by hand with `wipefs -a`; else remove it from "
            "`nvme.devices` in node.yaml"
        )
        try:
            if not stat.S_ISBLK(os.stat(path).st_mode):
                raise StepError(f"{device}: got a file that is no block device; {advice}")
        except FileNotFoundError:
            raise StepError(f"{device}: no such device; see `lsblk`, and `nvme.devices` in node.yaml") from None
        found = self._signatures(node, device)
        if found:
            what = found.get("TYPE") or found.get("PTTYPE") or "a signature"
            label = f" labelled {found['LABEL']}" if found.get("LABEL") else ""
            raise StepError(f"{device}: has {what}{label}, expected an empty device; {advice}")
        name = os.path.basename(path)
        holders = node.path(f"/sys/class/block/{name}/holders")
        held = sorted(os.listdir(holders)) if holders.is_dir() else []
        parts = [entry.name for entry in node.path(f"/sys/class/block/{name}").glob(f"{name}*")]
        if held or parts:
            raise StepError(f"{device}: in use by {' '.join(held + parts)}; {advice}")
        if any(line.split()[0] in (device, path) for line in node.text("/proc/mounts").splitlines()):
            raise StepError(f"{device}: is mounted; {advice}")
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
        except OSError as error:
            why = "the kernel reports it as in use" if error.errno == errno.EBUSY else str(error.strerror)
            raise StepError(f"{device}: {why}; {advice}") from None
