"""NVLink and NVSwitch: whether all links are up and without errors, and the fabric manager runs."""

from __future__ import annotations

import itertools
import re

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, Unreadable, check
from lifecycle.health.finding import Finding, critical, ok, warning
from lifecycle.health.nvidia_smi import ADVICE, lines_about_gpus
from lifecycle.health.pci import nvidia_gpus

_GPU = re.compile(r"^GPU (\d+):")
_LINK = re.compile(r"^\s*Link (\d+): (?:<inactive>|([\d.]+) GB/s)\s*$")
_COUNTERS = {  # NVML's name -> effect on the finding
    "NVML_NVLINK_ERROR_DL_REPLAY": "replay",
    "NVML_NVLINK_ERROR_DL_RECOVERY": "recovery",
    "NVML_NVLINK_ERROR_DL_CRC_FLIT": "crc",
}
_BROKEN = (
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_RESET_REQUIRED",
    "NVML_ERROR_UNKNOWN",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
)
_FABRIC_MANAGER = "nvidia-fabricmanager"


@check("nvlink_state", Level.QUICK, limit_s=15.0)
def nvlink_state(node: CheckedNode) -> Finding:
    """Every NVLink of every GPU is up."""
    links = _by_gpu(_ask(node, "-s"), _LINK)
    if not any(links.values()):
        raise NotHere("no NVLink")
    cut = [gpu for gpu, found in links.items() if 0 < len(found) < max(map(len, links.values()))]
    few = node.expected and node.expected.nvlinks and max(map(len, links.values())) < node.expected.nvlinks
    if cut or few:  # links that are down have a line too
        raise CannotObserve(f"nvidia-smi nvlink -s: not all links of GPU {', '.join(cut or links)} have a line")
    up = {gpu: sum(1 for _, speed in found if speed) for gpu, found in links.items()}
    most = max(up.values())
    wanted = (node.expected and node.expected.nvlinks) or most
    down = [
        f"GPU {gpu}: {up[gpu]}" for gpu, found in links.items() if up[gpu] < wanted or (most and up[gpu] < len(found))
    ]
    if most == 0 and not (node.expected and node.expected.nvlinks):
        raise NotHere("no NVLink is connected")
    if down:
        return critical(
            ", ".join(down) + " up", f"{wanted} each", "check the fabric manager; reboot, then replace the node"
        )
    speeds = sorted({speed for found in links.values() for _, speed in found if speed})
    return ok(f"{most} on each GPU, {', '.join(speeds)} GB/s a link", f"{wanted} each")


@check("nvlink_errors", Level.QUICK, limit_s=15.0)
def nvlink_errors(node: CheckedNode) -> Finding:
    """No NVLink has counted an error."""
    counts = _error_counts(node)
    if not counts:
        raise NotHere("no NVLink error counters")
    bad = [f"GPU {gpu} link {link}: {count} {kind}" for gpu, link, kind, count in counts if count]
    if bad:
        more = f" and {len(bad) - 4} more" if len(bad) > 4 else ""
        return warning(", ".join(bad[:4]) + more, "0", "run the check again under load; replace the node if they grow")
    return ok("0", "0")


@check("fabric_manager", Level.QUICK, limit_s=10.0)
def fabric_manager(node: CheckedNode) -> Finding:
    """Where there is an NVSwitch, the fabric manager runs."""
    if not list(node.path("/dev").glob("nvidia-nvswitch[0-9]*")):
        raise NotHere("no NVSwitch")
    said = node.tool("systemctl", "is-active", _FABRIC_MANAGER, timeout_s=5.0, check=False).stdout.strip()
    if not said:
        raise CannotObserve("systemctl said nothing")
    if said == "active":
        return ok(said, "active")
    return critical(said, "active", f"systemctl restart {_FABRIC_MANAGER}; its version must equal the driver's")


def _ask(node: CheckedNode, option: str) -> str:
    if not nvidia_gpus(node):
        raise NotHere("no NVIDIA GPU")
    try:
        done = node.tool("nvidia-smi", "nvlink", option, timeout_s=12.0, check=False)
    except NotHere:
        raise CannotObserve("nvidia-smi is not installed, and there are GPUs on the PCI bus") from None
    lost, _ = lines_about_gpus(f"{done.stdout}\n{done.stderr}")
    if lost:
        raise Unreadable("; ".join(lost), ADVICE)
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
        raise CannotObserve(f"nvidia-smi nvlink {option}: exit code {done.returncode}: {said or 'it said nothing'}")
    return done.stdout


def _error_counts(node: CheckedNode) -> list[tuple[int, int, str, int]]:
    """GPU, link, kind and count of every error counter, from NVML; empty if no GPU has NVLink."""
    if not nvidia_gpus(node):
        raise NotHere("no NVIDIA GPU")
    nvml = node.nvml()
    found = []
    try:
        nvml.nvmlInit()
        for gpu in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(gpu)
            for link, (name, kind) in itertools.product(range(nvml.NVML_NVLINK_MAX_LINKS), _COUNTERS.items()):
                try:
                    count = nvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, getattr(nvml, name))
                except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):  # there is no such link
                    continue
                found.append((gpu, link, kind, int(count)))
    except nvml.NVMLError as error:
        if error.value in (getattr(nvml, name) for name in _BROKEN):
            raise Unreadable(f"NVML: {error}", ADVICE) from None
        raise CannotObserve(f"NVML: {error}") from None
    return found


def _by_gpu(text: str, line: re.Pattern[str]) -> dict[str, list[tuple[str, ...]]]:
    """The matches of a pattern below each "GPU n:" line."""
    found: dict[str, list[tuple[str, ...]]] = {}
    gpu = ""
    for row in text.splitlines():
        if head := _GPU.match(row):
            gpu = head[1]
            found[gpu] = []
        elif gpu and (hit := line.match(row)):
            found[gpu].append(tuple(group or "" for group in hit.groups()))
    return found
