"""What the health checks last said of this node: the file that `holdfast node check` writes as root."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from slurm.hooks.places import Places, SettingsError, read_of_root

_VERSION = 1
_MAX_BYTES = 1 << 20
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The part of the file that hooks act on.

    Attributes:
        status: "ok", "warning", "critical", or "unknown": nothing is done about a node for the last.
        age_s: seconds since the last check ended.
        reason: the failed checks, or why nothing is known; one line.
    """

    status: str
    age_s: float
    reason: str


def read_verdict(places: Places) -> Verdict:
    """The verdict of this boot; "unknown" where there is none that can be trusted."""
    try:
        found = json.loads(read_of_root(places.verdict, _MAX_BYTES))
        if found["version"] != _VERSION:
            return _unknown(f"{places.verdict} has version {found['version']!r}, expected {_VERSION}")
        if found["boot_id"] != _boot_id():
            return _unknown("the last check was before this boot")
        failed = [
            f"{row['name']}: {row['measured']}, expected {row['expected']}"
            for row in found["checks"]
            if row["status"] == "critical"
        ]
        age_s = time.time() - float(found["time_s"])
        return Verdict(status=str(found["status"]), age_s=age_s, reason=" ".join("; ".join(failed).split())[:500])
    except FileNotFoundError:
        return _unknown(f"no verdict yet; `holdfast node check` writes {places.verdict}")
    except SettingsError as error:
        return _unknown(str(error))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return _unknown(f"{places.verdict} is no verdict ({type(error).__name__}: {error})")


def _unknown(why: str) -> Verdict:
    return Verdict(status="unknown", age_s=0.0, reason=why)


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
