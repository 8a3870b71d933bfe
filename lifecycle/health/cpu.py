"""CPU and memory: complete, with none much slower than the others, and without memory errors."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from lifecycle.health.check import CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning

_TRIAD_BYTES = 64 << 20  # of each of the three arrays, over all cores; larger than any cache
_TRIAD_ROUNDS = 5
_CORE_ROUNDS = 3
_CORE_LOOPS = 60_000
_SLOW_CORE = 0.6


@check("cpus", Level.PROLOG, limit_s=1.0)
def cpus(node: CheckedNode) -> Finding:
    """Every CPU that is there is online."""
    try:
        there, online = (_count(node.read(f"/sys/devices/system/cpu/{name}")) for name in ("present", "online"))
    except OSError as error:
        raise NotHere(f"/sys/devices/system/cpu: {error.strerror}") from None
    if online < there:
        return warning(f"{online} of {there} online", f"{there}", "were they taken offline on purpose? dmesg")
    return ok(f"{online} online", f"{there}")


@check("memory_errors", Level.PROLOG, limit_s=1.0)
def memory_errors(node: CheckedNode) -> Finding:
    """The memory controllers have counted no uncorrectable error."""
    counters = list(node.path("/sys/devices/system/edac/mc").glob("mc*/ue_count"))
    if not counters:
        raise NotHere("no memory controller counts errors here (EDAC)")
    bad, mended = (sum(int(path.with_name(name).read_text()) for path in counters) for name in ("ue_count", "ce_count"))
    measured = f"{bad} uncorrectable, {mended} corrected"
    if bad:
        return critical(measured, "0 uncorrectable", "replace the memory module or the node")
    return ok(measured, "0 uncorrectable")


@check("cpu_speed", Level.QUICK, limit_s=30.0, alone=True)
def cpu_speed(node: CheckedNode) -> Finding:
    """No core is much slower than the others."""
    allowed = sorted(os.sched_getaffinity(0))
    try:
        times_s = {core: _time_core(core) for core in allowed}
    finally:
        os.sched_setaffinity(0, allowed)
    usual_s = statistics.median(times_s.values())
    slow = [core for core, core_s in times_s.items() if usual_s / core_s < _SLOW_CORE]
    worst = usual_s / max(times_s.values())
    expected = f"slowest at least {_SLOW_CORE:.0%} of the median"
    measured = f"{len(allowed)} cores, slowest {worst:.0%} of the median"
    if slow:
        told = ", ".join(map(str, slow[:8]))
        return warning(f"{measured}: {told}", expected, "is a job running there? thermal throttling? replace the node")
    return ok(measured, expected)


@check("memory_bandwidth", Level.QUICK, limit_s=30.0, alone=True)
def memory_bandwidth(node: CheckedNode) -> Finding:
    """Memory moves at memory's speed (STREAM's triad, all cores)."""
    import numpy as np

    cores = len(os.sched_getaffinity(0))
    length = _TRIAD_BYTES // 8 // cores
    parts = [tuple(np.full(length, float(value)) for value in (0, 1, 2)) for _ in range(cores)]

    def triad(part: tuple[np.ndarray, ...]) -> None:
        a, b, c = part
        np.multiply(c, 3.0, out=a)  # NumPy releases the GIL here
        np.add(a, b, out=a)

    best_s = float("inf")
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(_TRIAD_ROUNDS):
            start_s = time.monotonic()
            list(pool.map(triad, parts))
            best_s = min(best_s, time.monotonic() - start_s)
    moved = 5 * 8 * length * cores  # multiply reads one array and writes one, add reads two and writes one
    return ok(f"{moved / best_s / 1e9:.1f} GB/s by {cores} cores")


def _time_core(core: int) -> float:
    """The seconds of a fixed computation on one core; the best of several runs."""
    os.sched_setaffinity(0, {core})
    best_s = float("inf")
    for _ in range(_CORE_ROUNDS):
        start_s = time.perf_counter()
        total = 0
        for number in range(_CORE_LOOPS):
            total += number * number
        best_s = min(best_s, time.perf_counter() - start_s)
    return best_s


def _count(ranges: str) -> int:
    """The number of elements in a list such as 0-3,8."""
    ends = [part.split("-") for part in ranges.strip().split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
