"""EFA, Amazon's RDMA network: whether all interfaces are there, and whether programs may use them."""

from __future__ import annotations

import re
import resource

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning
from lifecycle.health.pci import efa_interfaces, nvidia_gpus

_RDMA = "/sys/class/infiniband"
_GDRCOPY = ("/usr/local/lib/libgdrapi.so", "/usr/lib/libgdrapi.so", "/usr/lib/x86_64-linux-gnu/libgdrapi.so.2")
_LOCKED = re.compile(r"^Max locked memory\s+(\S+)", re.MULTILINE)
_HUGE = re.compile(r"^HugePages_(Total|Free):\s+(\d+)", re.MULTILINE)


@check("efa_devices", Level.PROLOG, limit_s=1.0)
def efa_devices(node: CheckedNode) -> Finding:
    """Every EFA interface has its driver and an active port, and the instance type's number is there."""
    plugged = efa_interfaces(node)
    wanted = node.expected.efa if node.expected else len(plugged)
    if wanted == len(plugged) == 0:
        raise NotHere("no EFA interface")
    driven = _devices(node)
    down = [name for name, state in driven.items() if "ACTIVE" not in state]
    measured = f"{len(plugged)} on the PCI bus, {len(driven)} with the driver"
    if down:
        return critical(f"{measured}, not active: {', '.join(down)}", f"{wanted}", "reboot; then replace the node")
    if wanted == len(plugged) == len(driven):
        return ok(measured, f"{wanted}")
    if not driven:
        return critical(measured, f"{wanted}", "modprobe efa, or run the EFA installer (holdfast node provision)")
    return critical(measured, f"{wanted}", "attach the missing interfaces (launch template), or replace the node")


@check("efa_modules", Level.QUICK, limit_s=2.0)
def efa_modules(node: CheckedNode) -> Finding:
    """The kernel modules that EFA needs are loaded; with GPUs also one that lets it read their memory."""
    if not efa_interfaces(node):
        raise NotHere("no EFA interface")
    loaded = {path.name for path in node.path("/sys/module").glob("*")}
    missing = {"efa", "ib_uverbs"} - loaded
    if missing:
        return critical(f"not loaded: {', '.join(sorted(missing))}", "efa, ib_uverbs", "run the EFA installer")
    peer = loaded & {"nvidia_peermem", "efa_nv_peermem"}
    if nvidia_gpus(node) and not peer and not _has_dmabuf(node):
        advice = "modprobe efa_nv_peermem, or a driver and kernel with dma-buf"
        return warning("no GPU memory module", "efa_nv_peermem, nvidia_peermem or dma-buf", advice)
    return ok(", ".join(sorted(loaded & {"efa", "ib_uverbs", "gdrdrv"} | peer)), "efa, ib_uverbs")


@check("gdrcopy", Level.QUICK, limit_s=2.0)
def gdrcopy(node: CheckedNode) -> Finding:
    """Where GDRCopy is installed its module is loaded; NCCL's plugin copies small messages by the CPU without it."""
    if not nvidia_gpus(node):
        raise NotHere("no NVIDIA GPU")
    if node.path("/dev/gdrdrv").exists():
        return ok("/dev/gdrdrv", "/dev/gdrdrv")
    if not any(node.path(name).exists() for name in _GDRCOPY):
        raise NotHere("GDRCopy is not installed")
    return warning(
        "installed, no /dev/gdrdrv", "/dev/gdrdrv", "modprobe gdrdrv; rebuild it after a new kernel or driver"
    )


@check("locked_memory", Level.QUICK, limit_s=2.0)
def locked_memory(node: CheckedNode) -> Finding:
    """Jobs may lock all memory, which RDMA needs."""
    measured = _locked_memory(node)
    if "unlimited" in measured:
        return ok(measured, "unlimited")
    if _devices(node) or efa_interfaces(node):
        advice = (
            "memlock unlimited in limits.conf, LimitMEMLOCK=infinity for slurmd, PropagateResourceLimitsExcept=MEMLOCK"
        )
        return critical(measured, "unlimited", advice)
    return ok(measured, "any: no RDMA here")


@check("huge_pages", Level.QUICK, limit_s=2.0)
def huge_pages(node: CheckedNode) -> Finding:
    """There are free huge pages for EFA's buffers."""
    if not efa_interfaces(node):
        raise NotHere("no EFA interface")
    pages = {name: int(count) for name, count in _HUGE.findall(node.read("/proc/meminfo"))}
    if pages.keys() != {"Total", "Free"}:
        raise CannotObserve("/proc/meminfo tells no huge pages")
    measured = f"{pages['Free']} of {pages['Total']} free"
    if pages["Free"]:
        return ok(measured, "some free")
    return warning(
        measured, "some free", "vm.nr_hugepages = 5128 (what the EFA installer sets), or end what holds them"
    )


def _devices(node: CheckedNode) -> dict[str, str]:
    """RDMA devices with a driver, and the state of their first port."""
    states = {}
    for path in sorted(node.path(_RDMA).glob("*")):
        try:
            states[path.name] = (path / "ports/1/state").read_text().strip()
        except OSError as error:
            states[path.name] = f"{error.strerror}"
    return states


def _has_dmabuf(node: CheckedNode) -> bool:
    """Whether kernel and driver can share GPU memory without a module: the open driver on Linux 5.12 or newer."""
    try:
        release, driver = node.read("/proc/sys/kernel/osrelease"), node.read("/proc/driver/nvidia/version")
    except OSError:
        return False
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (5, 12) and "Open Kernel Module" in driver


def _locked_memory(node: CheckedNode) -> str:
    """The limit that jobs inherit from slurmd; if slurmd does not run, that of this process."""
    for path in node.path("/proc").glob("[0-9]*/comm"):
        try:
            is_slurmd = path.read_text().strip() in ("slurmd", "slurmd-wlm")  # Debian's, after a reconfiguration
            if is_slurmd and (hit := _LOCKED.search((path.parent / "limits").read_text())):
                return f"{_size(hit[1])} (slurmd)"
        except OSError:  # the process has ended
            continue
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return f"{'unlimited' if soft == resource.RLIM_INFINITY else _size(str(soft))} (this process)"


def _size(limit: str) -> str:
    """A limit in bytes as text."""
    return f"{int(limit) >> 10} KiB" if limit.isdigit() else limit
