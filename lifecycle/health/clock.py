"""The clock: whether it is synchronised with a time server."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

from lifecycle.health.check import CannotObserve, CheckedNode, Level, NotHere, check
from lifecycle.health.finding import Finding, critical, ok, warning

# munge refuses credentials of other nodes at 300 s. Logs of two nodes cannot be compared long before that.
MAX_OFFSET_S = 0.5
_COLUMNS = 14  # of chronyc tracking, since chrony 2
_SYNCHRONISED = ("Normal", "Insert second", "Delete second")  # leap status; the fourth is "Not synchronised"
_UNSYNCHRONISED = 0x0040  # STA_UNSYNC, linux/timex.h


@dataclass(frozen=True, kw_only=True)
class ClockState:
    """The state of the clock.

    Attributes:
        offset_s: estimated difference from true time, seconds.
        synchronised: whether a time daemon adjusts it.
        keeper: the source of this information: chrony or the kernel.
    """

    offset_s: float
    synchronised: bool
    keeper: str


@check("clock", Level.QUICK, limit_s=8.0)
def clock(node: CheckedNode) -> Finding:
    """The clock is synchronised and close to true time."""
    try:
        state = _from_chrony(node.tool("chronyc", "-c", "tracking", timeout_s=4.0).stdout)
    except (NotHere, CannotObserve):  # not installed, or its daemon is not running
        state = _from_kernel()
    return judge_clock(state)


def judge_clock(state: ClockState) -> Finding:
    """Whether a clock is good enough for jobs over many nodes."""
    expected = f"synchronised, within {MAX_OFFSET_S:g} s"
    measured = f"{abs(state.offset_s) * 1e3:.3f} ms off by {state.keeper}"
    if not state.synchronised:
        return warning(f"not synchronised ({state.keeper})", expected, "systemctl enable --now chrony")
    if abs(state.offset_s) > MAX_OFFSET_S:
        return critical(measured, expected, "chronyc makestep; see chronyc sources")
    return ok(measured, expected)


def _from_chrony(text: str) -> ClockState:
    """Of `chronyc -c tracking`: reference id, its name, stratum, time, offset (seconds), ..., leap status."""
    columns = text.strip().split(",")
    try:
        offset_s = float(columns[4])
        if len(columns) < _COLUMNS or not math.isfinite(offset_s):
            raise ValueError
        return ClockState(offset_s=offset_s, synchronised=columns[-1] in _SYNCHRONISED, keeper="chrony")
    except (IndexError, ValueError):
        raise CannotObserve(f"chronyc tracking: {text.strip()[:80]}") from None


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2)."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "freq", "maxerror", "esterror")),
        ("status", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("constant", "precision", "tolerance", "seconds", "microseconds", "tick")),
        ("rest", ctypes.c_char * 256),
    )


def _from_kernel() -> ClockState:
    """The kernel's state: whether a daemon adjusts the clock, and the estimated error."""
    state = _Timex()
    if ctypes.CDLL(None).adjtimex(ctypes.byref(state)) < 0:
        raise CannotObserve("adjtimex failed")
    return ClockState(
        offset_s=state.esterror / 1e6, synchronised=not state.status & _UNSYNCHRONISED, keeper="the kernel's estimate"
    )
