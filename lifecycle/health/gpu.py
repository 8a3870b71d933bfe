"""The GPUs: whether all are there, and what each reports about itself, from one `nvidia-smi -q -x`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from xml.etree import ElementTree

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning
from lifecycle.health.pci import nvidia_gpus

_ASK = ("nvidia-smi", "-q", "-x")
_ASK_S = 20.0  # without persistence mode the driver is loaded for each call, which takes seconds
_MEMORY_TOLERANCE = 0.03  # the driver keeps a little for itself, more of it with each generation
_MIB = 1 << 20
_RECOVERIES = re.compile(r"\w*\s?(Reset|Reboot|Drain)\b")  # besides None; other texts may be an error of the tool


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The driver's report about one GPU."""

    bus: str
    facts: ElementTree.Element

    def text(self, path: str) -> str:
        """The text of an element; "N/A" if this driver or GPU does not have it."""
        return (self.facts.findtext(path) or "N/A").strip()

    def number(self, path: str) -> int | None:
        """The number at the start of an element's text; None if there is none."""
        return _number(self.text(path))

    def active(self, group: str) -> list[str]:
        """Names of a group's elements that are Active."""
        return [
            element.tag for element in self.facts.iterfind(f"{group}/*") if (element.text or "").strip() == "Active"
        ]

    def sum(self, group: str, word: str) -> int | None:
        """The sum of the counters below a group whose name contains a word; None if none has a number."""
        numbers = [
            number
            for element in self.facts.iterfind(f"{group}//*")
            if word in element.tag and (number := _number(element.text or "")) is not None
        ]
        return sum(numbers) if numbers else None


@check("gpu_devices", Level.PROLOG, limit_s=1.0)
def gpu_devices(node: CheckedNode) -> Finding:
    """Every GPU on the PCI bus is the driver's, and the instance type's number is there."""
    plugged = nvidia_gpus(node)
    wanted = _wanted(node, len(plugged))
    driven = len(list(node.path("/proc/driver/nvidia/gpus").glob("*")))
    measured, expected = f"{len(plugged)} on the PCI bus, {driven} with the driver", f"{wanted}"
    if wanted == len(plugged) == driven:
        return ok(measured, expected)
    advice = "load the nvidia driver" if driven == 0 else "reboot; if one stays away, replace the node"
    return critical(measured, expected, advice)


@check("gpu_count", Level.QUICK, limit_s=25.0)
def gpu_count(node: CheckedNode) -> Finding:
    """nvidia-smi sees every GPU."""
    wanted = _wanted(node, len(nvidia_gpus(node)))
    seen = node.once(read_gpus)
    measured = f"{len(seen)} {' '.join(sorted({gpu.text('product_name') for gpu in seen}))}"
    if len(seen) == wanted:
        return ok(measured, f"{wanted}")
    return critical(measured, f"{wanted}", "look for Xid 79 in the kernel log; reboot, then replace the node")


@check("gpu_driver", Level.QUICK, limit_s=25.0)
def gpu_driver(node: CheckedNode) -> Finding:
    """The driver that runs is the one that is installed."""
    _gpus(node)
    installed = node.once(_log).findtext("driver_version", "").strip()
    if not re.match(r"\d", installed):
        raise CannotObserve(f"nvidia-smi tells no driver version: {installed!r}")
    try:
        running = node.read("/sys/module/nvidia/version").strip()
    except OSError:
        return critical(f"nvidia-smi {installed}, no kernel module", "both", "load the nvidia module, or reboot")
    measured = f"driver {running}, CUDA {node.once(_log).findtext('cuda_version', 'N/A').strip()}"
    if running == installed:
        return ok(measured, f"{installed}")
    return critical(measured, f"{installed}, as installed", "reboot: the driver was updated under a running kernel")


@check("gpu_memory", Level.QUICK, limit_s=25.0)
def gpu_memory(node: CheckedNode) -> Finding:
    """All GPUs have the same memory, and the instance type's."""
    told = {gpu.bus: gpu.number("fb_memory_usage/total") for gpu in _gpus(node)}
    if None in told.values():  # some types have no memory of their own, and a broken tool none to tell
        raise CannotObserve(f"nvidia-smi tells no memory of {', '.join(bus for bus in told if told[bus] is None)}")
    sizes = {bus: (size or 0) * _MIB for bus, size in told.items()}
    wanted = (node.expected and node.expected.gpu_memory_bytes) or max(sizes.values())
    small = [bus for bus, size in sizes.items() if size < wanted * (1 - _MEMORY_TOLERANCE)]
    measured, expected = f"{min(sizes.values()) // _MIB} MiB", f"{wanted // _MIB} MiB each"
    if not small:
        return ok(measured, expected)
    return critical(
        f"{measured} on {', '.join(small)}", expected, "reset the GPU (nvidia-smi -r); then replace the node"
    )


@check("gpu_ecc", Level.QUICK, limit_s=25.0)
def gpu_ecc(node: CheckedNode) -> Finding:
    """No uncorrectable memory errors since the driver was loaded."""
    expected = "ECC on, 0 uncorrectable"
    off = [gpu.bus for gpu in _gpus(node) if gpu.text("ecc_mode/current_ecc") == "Disabled"]
    fresh = _told(node, lambda gpu: _count(gpu.sum("ecc_errors/volatile", "uncorrectable")))
    worn = _told(node, lambda gpu: "SRAM" if gpu.text("ecc_errors/aggregate/sram_threshold_exceeded") == "Yes" else "")
    old = _told(node, lambda gpu: _count(gpu.sum("ecc_errors/aggregate", "uncorrectable")))
    if fresh:
        return critical(
            f"uncorrectable since driver load: {fresh}", expected, "drain, reset the GPU or reboot, run deep"
        )
    if worn:
        return critical(f"SRAM error threshold exceeded: {worn}", expected, "replace the node")
    if off:
        return warning(f"ECC off on {', '.join(off)}", expected, "nvidia-smi -e 1, then reboot")
    if old:
        return warning(f"uncorrectable in its life: {old}", expected, "watch it; replace the node if the number grows")
    return ok("0 uncorrectable", expected)


@check("gpu_row_remap", Level.QUICK, limit_s=25.0)
def gpu_row_remap(node: CheckedNode) -> Finding:
    """No row of GPU memory waits to be remapped, and none could not be."""
    expected = "none pending, none failed"
    failed = _told(node, lambda gpu: _yes(gpu, "remapped_rows/remapped_row_failure"))
    pending = _told(
        node,
        lambda gpu: _yes(gpu, "remapped_rows/remapped_row_pending") or _yes(gpu, "retired_pages/pending_retirement"),
    )
    if failed:
        return critical(f"failed: {failed}", expected, "replace the node: the GPU has no spare rows left")
    if pending:
        return critical(f"pending: {pending}", expected, "drain, then reset the GPU (nvidia-smi -r) or reboot")
    rows = _told(node, lambda gpu: _count(gpu.number("remapped_rows/remapped_row_unc")))
    return ok(f"remapped: {rows}" if rows else "0 remapped", expected)


@check("gpu_recovery", Level.QUICK, limit_s=25.0)
def gpu_recovery(node: CheckedNode) -> Finding:
    """No GPU asks for a reset or a reboot."""
    asked = _told(
        node,
        lambda gpu: (
            _recovery(gpu.text("gpu_recovery_action"))
            or ("Reset" if _yes(gpu, "gpu_reset_status/reset_required") else "")
        ),
    )
    if asked:
        return critical(f"asked for: {asked}", "none", "drain and do what it asks")
    return ok("none asked for", "none")


@check("gpu_throttle", Level.QUICK, limit_s=25.0)
def gpu_throttle(node: CheckedNode) -> Finding:
    """No GPU is slowed by heat or by its power supply."""
    hard = _told(node, lambda gpu: " ".join(reason for reason in _slowed(gpu) if reason.startswith("hw_")))
    soft = _told(node, lambda gpu: " ".join(reason for reason in _slowed(gpu) if reason.startswith("sw_thermal")))
    hottest = max((gpu.number("temperature/gpu_temp") or 0 for gpu in _gpus(node)), default=0)
    if hard:
        return critical(f"{hard}, {hottest} C", "no slowdown", "check cooling and power supplies; replace the node")
    if soft:
        return warning(f"{soft}, {hottest} C", "no slowdown", "check cooling")
    return ok(f"none, {hottest} C at most", "no slowdown")


@check("gpu_persistence", Level.QUICK, limit_s=25.0)
def gpu_persistence(node: CheckedNode) -> Finding:
    """Persistence mode is on: the driver stays loaded between jobs."""
    off = [gpu.bus for gpu in _gpus(node) if gpu.text("persistence_mode") == "Disabled"]
    if off:
        return warning(f"off on {len(off)} of {len(_gpus(node))}", "on", "systemctl enable --now nvidia-persistenced")
    return ok("on", "on")


@check("gpu_pcie", Level.QUICK, limit_s=25.0)
def gpu_pcie(node: CheckedNode) -> Finding:
    """Every GPU's PCIe link is as wide as its siblings'."""
    links = "pci/pci_gpu_link_info/link_widths"
    widths = {gpu.bus: gpu.number(f"{links}/current_link_width") for gpu in _gpus(node)}
    known = {bus: width for bus, width in widths.items() if width}
    if not known:
        raise CannotObserve("nvidia-smi tells no link width")
    # Not compared with the card's own maximum: clouds connect some types with fewer lanes (an A10G in an EC2 g5 has 8
    # of 16).
    widest = max(known.values())
    narrow = [f"{bus} {width}x" for bus, width in known.items() if width < widest]
    if narrow:
        return critical(", ".join(narrow), f"{widest}x", "reboot; if it stays, reseat the GPU or replace the node")
    return ok(f"{widest}x", "the same on all")


def read_gpus(node: CheckedNode) -> list[Gpu]:
    """All GPUs that nvidia-smi sees.

    Raises:
        NotHere: the node has no NVIDIA GPU.
        CannotObserve: nvidia-smi did not answer.
    """
    return [Gpu(bus=gpu.get("id", "?"), facts=gpu) for gpu in node.once(_log).iterfind("gpu")]


def _log(node: CheckedNode) -> ElementTree.Element:
    _wanted(node, len(nvidia_gpus(node)))
    try:
        said = node.tool(*_ASK, timeout_s=_ASK_S).stdout
    except NotHere:
        raise CannotObserve("nvidia-smi is not installed, and there are GPUs on the PCI bus") from None
    try:
        log = ElementTree.fromstring(said)
    except ElementTree.ParseError as error:
        raise CannotObserve(f"nvidia-smi -q -x: no XML ({error})") from None
    if log.tag != "nvidia_smi_log":
        raise CannotObserve(f"nvidia-smi -q -x: got {log.tag}, expected nvidia_smi_log")
    return log


def _gpus(node: CheckedNode) -> list[Gpu]:
    gpus = node.once(read_gpus)
    if not gpus:
        raise CannotObserve("nvidia-smi sees no GPU")
    return gpus


def _wanted(node: CheckedNode, plugged: int) -> int:
    """The expected number of GPUs: that of the instance type, else that on the PCI bus."""
    wanted = node.expected.gpus if node.expected else plugged
    if wanted == plugged == 0:
        raise NotHere("no NVIDIA GPU")
    return wanted


def _told(node: CheckedNode, say: Callable[[Gpu], str]) -> str:
    """The texts of the GPUs for which `say` returns one, each with its PCI address."""
    return ", ".join(f"{gpu.bus} {word}" for gpu in _gpus(node) if (word := say(gpu)))


def _slowed(gpu: Gpu) -> list[str]:
    active = gpu.active("clocks_event_reasons") + gpu.active("clocks_throttle_reasons")  # the latter until driver 530
    return [tag.split("_reason_")[-1] for tag in active]


def _number(text: str) -> int | None:
    digits = text.strip().split(" ")[0].rstrip("x")
    return int(digits) if digits.isdigit() else None


def _count(number: int | None) -> str:
    return str(number) if number else ""


def _yes(gpu: Gpu, path: str) -> str:
    return "yes" if gpu.text(path) == "Yes" else ""


def _recovery(text: str) -> str:
    return text if _RECOVERIES.match(text) else ""
