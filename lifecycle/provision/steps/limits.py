"""Process limits and huge pages. Memory that EFA and NCCL register counts as locked memory."""

from __future__ import annotations

from lifecycle.provision.step import ProvisionedNode, Step, StepError

_LIMITS = "/etc/security/limits.d/90-holdfast.conf"
_SYSTEMD = "/etc/systemd/system.conf.d/90-holdfast.conf"
_SYSCTL = "/etc/sysctl.d/90-holdfast.conf"


class Limits(Step):
    """Limits of locked memory and open files, for logins (pam_limits) and for daemons such as slurmd (systemd)."""

    name = "limits"

    def goal(self, node: ProvisionedNode) -> str:
        return f"memlock {node.site.memlock}, nofile {node.site.nofile}"

    def is_done(self, node: ProvisionedNode) -> bool:
        return all(node.text(path) == text for path, text in self._files(node).items())

    def apply(self, node: ProvisionedNode) -> None:
        for path, text in self._files(node).items():
            node.write(path, text)
        if node.has_systemd:
            node.run(("systemctl", "daemon-reexec"))

    def _files(self, node: ProvisionedNode) -> dict[str, str]:
        memlock, nofile = node.site.memlock, node.site.nofile
        rows = [("memlock", memlock), ("nofile", str(nofile))]
        pam = [
            f"{who} {kind} {item} {value}" for who in ("*", "root") for item, value in rows for kind in ("soft", "hard")
        ]
        in_bytes = "infinity" if memlock == "unlimited" else str(int(memlock) * 1024)
        daemons = ["[Manager]", f"DefaultLimitMEMLOCK={in_bytes}", f"DefaultLimitNOFILE={nofile}"]
        return {_LIMITS: "\n".join(pam) + "\n", _SYSTEMD: "\n".join(daemons) + "\n"}


class HugePages(Step):
    """Reserves huge pages of 2 MiB, now and after a reboot. EFA's package reserves its own; these are in addition."""

    name = "hugepages"

    def goal(self, node: ProvisionedNode) -> str:
        return f"{node.site.huge_pages} huge pages of 2 MiB reserved"

    def skip(self, node: ProvisionedNode) -> str:
        if not node.site.huge_pages:
            return "no `huge_pages` in node.yaml"
        return "a container uses the kernel of its host" if node.in_container else ""

    def is_done(self, node: ProvisionedNode) -> bool:
        return node.text(_SYSCTL) == self._text(node) and self._reserved(node) >= node.site.huge_pages

    def apply(self, node: ProvisionedNode) -> None:
        node.write(_SYSCTL, self._text(node))
        node.run(("sysctl", "-q", "-p", _SYSCTL))

    def verify(self, node: ProvisionedNode) -> None:
        got = self._reserved(node)
        if got < node.site.huge_pages:
            raise StepError(
                f"/proc/sys/vm/nr_hugepages: got {got}, expected {node.site.huge_pages}; memory is too fragmented or "
                "too small: reboot (the setting is kept), or set a lower `huge_pages` in node.yaml"
            )

    def _text(self, node: ProvisionedNode) -> str:
        return f"vm.nr_hugepages = {node.site.huge_pages}\n"

    def _reserved(self, node: ProvisionedNode) -> int:
        return int(node.text("/proc/sys/vm/nr_hugepages").strip() or 0)
