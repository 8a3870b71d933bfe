"""The GPUs: whether all are there, and what each reports about itself, from one `nvidia-smi -q -x`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning
from lifecycle.health.nvidia_smi import ADVICE, Gpu, judge_notes, of_gpus, read_report, silent_gpus, wanted_gpus
from lifecycle.health.pci import nvidia_gpus, unanswering

_MEMORY_TOLERANCE = 0.03  # the driver keeps a little for itself, more of it with each generation
_MIB = 1 << 20
_RECOVERY = r"None|.*\b(Reset|Reboot|Drain)\b.*"


@check("gpu_devices", Level.PROLOG, limit_s=1.0)
def gpu_devices(node: CheckedNode) -> Finding:
    """Every GPU on the PCI bus answers and is the driver's, and the instance type's number is there."""
    plugged = nvidia_gpus(node)
    wanted = wanted_gpus(node)
    driven = len(list(node.path("/proc/driver/nvidia/gpus").glob("*")))
    measured, expected = f"{len(plugged)} on the PCI bus, {driven} with the driver", f"{wanted}"
    if gone := unanswering(node, plugged):
        advice = "reboot, or switch the node off and on; then replace it"
        return critical(f"{measured}, no answer from {', '.join(gone)} (lspci: rev ff)", expected, advice)
    if wanted == len(plugged) == driven:
        return ok(measured, expected)
    advice = "load the nvidia driver" if driven == 0 else "reboot; if one stays away, replace the node"
    return critical(measured, expected, advice)


@check("gpu_count", Level.QUICK, limit_s=25.0)
def gpu_count(node: CheckedNode) -> Finding:
    """nvidia-smi reads every GPU."""
    report = node.once(read_report)
    wanted, seen = wanted_gpus(node), report.gpus()
    measured = f"{len(seen)} {' '.join(sorted({gpu.name or 'N/A' for gpu in seen}))}"
    if report.lost:
        return critical(f"{measured}; {'; '.join(report.lost)}", f"{wanted}", ADVICE)
    if len(seen) != wanted:
        silent = silent_gpus(node, report) if len(seen) < wanted else []
        told = f"{measured}; not {', '.join(silent)}" if silent else measured
        return critical(told, f"{wanted}", "look for Xid 79 in the kernel log; reboot, then replace the node")
    judge_notes(seen)
    if report.exit_code or report.remarks:
        said = "; ".join(report.remarks) or f"exit code {report.exit_code}"
        return warning(f"{measured}; nvidia-smi: {said}", f"{wanted}", "see NVIDIA's manual of nvidia-smi; run deep")
    return ok(measured, f"{wanted}")


@check("gpu_driver", Level.QUICK, limit_s=25.0)
def gpu_driver(node: CheckedNode) -> Finding:
    """The driver that runs is the one that is installed."""
    report = node.once(read_report)
    installed = report.fact("driver_version")
    if not re.match(r"\d", installed):
        raise CannotObserve(f"nvidia-smi tells no driver version: {installed!r}")
    try:
        running = node.read("/sys/module/nvidia/version").strip()
    except OSError:
        return critical(f"nvidia-smi {installed}, no kernel module", "both", "load the nvidia module, or reboot")
    measured = f"driver {running}, CUDA {report.fact('cuda_version') or 'N/A'}"
    if running == installed:
        return ok(measured, f"{installed}")
    return critical(measured, f"{installed}, as installed", "reboot: the driver was updated under a running kernel")


@check("gpu_memory", Level.QUICK, limit_s=25.0)
@of_gpus
def gpu_memory(node: CheckedNode, gpus: Sequence[Gpu]) -> Finding:
    """All GPUs have the same memory, and the instance type's."""
    told = {gpu.bus: gpu.number("fb_memory_usage/total") for gpu in gpus}
    sizes = {bus: size * _MIB for bus, size in told.items() if size is not None}
    if not sizes:  # some types have no memory of their own
        raise CannotObserve(f"nvidia-smi tells no memory of {', '.join(told)}")
    wanted = (node.expected and node.expected.gpu_memory_bytes) or max(sizes.values())
    small = [bus for bus, size in sizes.items() if size < wanted * (1 - _MEMORY_TOLERANCE)]
    measured, expected = f"{min(sizes.values()) // _MIB} MiB", f"{wanted // _MIB} MiB each"
    if small:
        return critical(f"{measured} on {', '.join(small)}", expected, ADVICE)
    return ok(measured, expected)


@check("gpu_ecc", Level.QUICK, limit_s=25.0)
@of_gpus
def gpu_ecc(node: CheckedNode, gpus: Sequence[Gpu]) -> Finding:
    """No uncorrectable memory errors since the driver was loaded."""
    expected = "ECC on, 0 uncorrectable"
    off = [gpu.bus for gpu in gpus if gpu.word("ecc_mode/current_ecc", "Enabled|Disabled") == "Disabled"]
    fresh = {gpu.bus: gpu.sum("ecc_errors/volatile", "uncorrectable") for gpu in gpus}
    old = {gpu.bus: gpu.sum("ecc_errors/aggregate", "uncorrectable") for gpu in gpus}
    worn = [gpu.bus for gpu in gpus if _yes(gpu, "ecc_errors/aggregate/sram_threshold_exceeded")]
    if any(fresh.values()):
        measured = f"uncorrectable since driver load: {_counts(fresh)}"
        return critical(measured, expected, "drain, reset the GPU or reboot, run deep")
    if worn:
        return critical(f"SRAM error threshold exceeded: {', '.join(worn)}", expected, "replace the node")
    if off:
        return warning(f"ECC off on {', '.join(off)}", expected, "nvidia-smi -e 1, then reboot")
    if any(old.values()):
        measured = f"uncorrectable in its life: {_counts(old)}"
        return warning(measured, expected, "watch it; replace the node if the number grows")
    if set(fresh.values()) == {None}:
        raise NotHere("the GPUs count no memory errors")
    return ok("0 uncorrectable", expected)


@check("gpu_row_remap", Level.QUICK, limit_s=25.0)
@of_gpus
def gpu_row_remap(node: CheckedNode, gpus: Sequence[Gpu]) -> Finding:
    """No row of GPU memory waits to be remapped, and none could not be."""
    expected = "none pending, none failed"
    failed = _those(gpus, lambda gpu: _yes(gpu, "remapped_rows/remapped_row_failure"))
    pending_rows = _those(gpus, lambda gpu: _yes(gpu, "remapped_rows/remapped_row_pending"))
    pending_pages = _those(gpus, lambda gpu: _yes(gpu, "retired_pages/pending_retirement"))
    if failed:
        return critical(f"failed: {', '.join(failed)}", expected, "replace the node: the GPU has no spare rows left")
    if pending_rows or pending_pages:
        measured = f"pending: {', '.join(pending_rows + pending_pages)}"
        return critical(measured, expected, "drain, then reset the GPU (nvidia-smi -r) or reboot")
    if not any(gpu.present for gpu in gpus):
        raise NotHere("the GPUs tell no remapped rows")
    rows = {gpu.bus: gpu.number("remapped_rows/remapped_row_unc") for gpu in gpus}
    return ok(f"remapped: {_counts(rows)}" if any(rows.values()) else "0 remapped", expected)


@check("gpu_recovery", Level.QUICK, limit_s=25.0)
@of_gpus
def gpu_recovery(node: CheckedNode, gpus: Sequence[Gpu]) -> Finding:
    """No GPU asks for a reset or a reboot."""
    told = {gpu.bus: gpu.word("gpu_recovery_action", _RECOVERY) for gpu in gpus}
    for gpu in gpus:
        if _yes(gpu, "gpu_reset_status/reset_required"):
            told[gpu.bus] = told[gpu.bus].replace("None", "") or "Reset"
    asked = [f"{bus} {action}" for bus, action in told.items() if action not in ("", "None")]
    if asked:
        return critical(f"asked for: {', '.join(asked)}", "none", "drain and do what it asks")
    if not any(gpu.present for gpu in gpus):
        raise NotHere("the driver tells no recovery action")
    return ok("none asked for", "none")


@check("gpu_throttle", Level.QUICK, limit_s=25.0)
@of_gpus
def gpu_throttle(node: CheckedNode, gpus: Sequence[Gpu]) -> Finding:
    """No GPU is slowed by heat or by its power supply."""
    slowed = {gpu.bus: _slowed(gpu) for gpu in gpus}
    hard, soft = _reasons(slowed, "hw_"), _reasons(slowed, "sw_thermal")
    known = [degrees for gpu in gpus if (degrees := gpu.number("temperature/gpu_temp")) is not None]
    hottest = f"{max(known)} C" if known else "no temperature"
    if hard:
        return critical(f"{hard}, {hottest}", "no slowdown", "check cooling and power supplies; replace the node")
    if soft:
        return warning(f"{soft}, {hottest}", "no slowdown", "check cooling")
    if set(map(type, slowed.values())) == {type(None)}:
        raise CannotObserve("nvidia-smi tells no reasons of slowdowns")
    return ok(f"none, {hottest} at most", "no slowdown")


@check("gpu_persistence", Level.QUICK, limit_s=25.0)
@of_gpus
def gpu_persistence(node: CheckedNode, gpus: Sequence[Gpu]) -> Finding:
    """Persistence mode is on: the driver stays loaded between jobs."""
    modes = [gpu.word("persistence_mode", "Enabled|Disabled") for gpu in gpus]
    if off := modes.count("Disabled"):
        return warning(f"off on {off} of {len(gpus)}", "on", "systemctl enable --now nvidia-persistenced")
    if not any(modes):
        raise CannotObserve("nvidia-smi tells no persistence mode")
    return ok("on", "on")


@check("gpu_pcie", Level.QUICK, limit_s=25.0)
@of_gpus
def gpu_pcie(node: CheckedNode, gpus: Sequence[Gpu]) -> Finding:
    """Every GPU's PCIe link is as wide as its siblings'."""
    widths = {gpu.bus: gpu.number("pci/pci_gpu_link_info/link_widths/current_link_width") for gpu in gpus}
    known = {bus: width for bus, width in widths.items() if width is not None}
    if not known:
        raise CannotObserve("nvidia-smi tells no link width")
    # Not compared with the card's own maximum: clouds connect some types with fewer lanes (an A10G in an EC2 g5 has 8
    # of 16).
    widest = max(known.values())
    narrow = [f"{bus} {width}x" for bus, width in known.items() if width < widest]
    if narrow:
        return critical(", ".join(narrow), f"{widest}x", "reboot; if it stays, reseat the GPU or replace the node")
    return ok(f"{widest}x", "the same on all")


def _those(gpus: Sequence[Gpu], holds: Callable[[Gpu], bool]) -> list[str]:
    return [gpu.bus for gpu in gpus if holds(gpu)]


def _yes(gpu: Gpu, path: str) -> bool:
    return gpu.word(path, "Yes|No") == "Yes"


def _counts(numbers: dict[str, int | None]) -> str:
    """The numbers that are not 0, each with its PCI address."""
    return ", ".join(f"{bus} {number}" for bus, number in numbers.items() if number)


def _slowed(gpu: Gpu) -> list[str] | None:
    """Reasons of a slowdown; None if the driver tells none."""
    groups = [gpu.active(f"clocks_{kind}_reasons") for kind in ("event", "throttle")]  # the latter until driver 530
    told = [tag.split("_reason_")[-1] for group in groups if group is not None for tag in group]
    return None if groups == [None, None] else told


def _reasons(slowed: dict[str, list[str] | None], prefix: str) -> str:
    """The reasons with a prefix, each GPU's with its PCI address."""
    told = {bus: [reason for reason in reasons or () if reason.startswith(prefix)] for bus, reasons in slowed.items()}
    return ", ".join(f"{bus} {' '.join(reasons)}" for bus, reasons in told.items() if reasons)
