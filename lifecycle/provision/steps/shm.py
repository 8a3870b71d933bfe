"""Sets the size of /dev/shm, which holds the checkpoints of this node's ranks and of its partner nodes."""

from __future__ import annotations

from lifecycle.provision import fstab
from lifecycle.provision.step import ProvisionedNode, Step, StepError

_MOUNT = "/dev/shm"


class Shm(Step):
    """Sets the size of /dev/shm, now and after a reboot. A larger size is kept until then."""

    name = "shm"

    def goal(self, node: ProvisionedNode) -> str:
        return f"{_MOUNT}: size {node.site.shm_size}"

    def skip(self, node: ProvisionedNode) -> str:
        return "the container's runtime sets it (docker --shm-size)" if node.in_container else ""

    def is_done(self, node: ProvisionedNode) -> bool:
        return fstab.holds(node, self._line(node)) and self._size_bytes(node) >= self._wanted_bytes(node)

    def apply(self, node: ProvisionedNode) -> None:
        fstab.put(node, self._line(node))
        if not node.mounted(_MOUNT):
            raise StepError(f"{_MOUNT}: got no mount, expected a tmpfs; reboot, then run again")
        if self._size_bytes(node) < self._wanted_bytes(node):
            node.run(("mount", "-o", f"remount,size={self._wanted_bytes(node)}", _MOUNT))

    def verify(self, node: ProvisionedNode) -> None:
        got, wanted = self._size_bytes(node), self._wanted_bytes(node)
        if got < wanted:
            raise StepError(f"{_MOUNT}: got {got >> 20} MiB, expected {wanted >> 20} MiB; see `mount | grep {_MOUNT}`")

    def _line(self, node: ProvisionedNode) -> str:
        return fstab.line("tmpfs", _MOUNT, "tmpfs", f"rw,nosuid,nodev,size={node.site.shm_size}")

    def _wanted_bytes(self, node: ProvisionedNode) -> int:
        size = node.site.shm_size
        if size.endswith("%"):
            total = next(line for line in node.text("/proc/meminfo").splitlines() if line.startswith("MemTotal:"))
            return (int(total.split()[1]) * 1024 * int(size[:-1]) // 100) & ~4095
        shift = {"k": 10, "m": 20, "g": 30}.get(size[-1].lower(), 0)
        return (int(size.rstrip("kmgKMG")) << shift) & ~4095

    def _size_bytes(self, node: ProvisionedNode) -> int:
        """Size of the tmpfs by df, a multiple of the page size."""
        found = node.run(("df", "--block-size=1", "--output=size", _MOUNT)).stdout.split()
        return int(found[-1])
