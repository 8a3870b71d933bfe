"""The last verdict of the health checks on this node, from the file that `holdfast node check` writes as root."""

from __future__ import annotations

import os
import time

from slurm.hooks.places import Places, SettingsError, read_of_root, write_of_root

_VERSION = 1
_MAX_BYTES = 1 << 20
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_HARMLESS = ("ok", "warning")


class HookVerdict:
    """The part of the verdict that hooks use.

    Attributes:
        status: "ok", "warning", "critical", or "unknown"; hooks take no action for "unknown".
        age_s: seconds since the last check ended.
        reason: the failed checks, or why the status is unknown; one line.
        failed_s: when the last of the failed checks ran, Unix seconds; 0 if none failed.
    """

    def __init__(self, *, status: str, age_s: float, reason: str, failed_s: float = 0.0) -> None:
        self.status = status
        self.age_s = age_s
        self.reason = reason
        self.failed_s = failed_s


def read_verdict(places: Places) -> HookVerdict:
    """The verdict of this boot; "unknown" if there is none that can be trusted.

    A verdict without failures is parsed once. Its result is cached with the identity of the file, so that later hooks
    need not import json, which takes as long as the rest of a prolog.
    """
    try:
        marks = _marks(places.verdict)
        if (known := _known(places, marks)) is not None:
            return known
        verdict = _parse(read_of_root(places.verdict, _MAX_BYTES), places)
    except FileNotFoundError:
        return _unknown(f"no verdict yet; `holdfast node check` writes {places.verdict}")
    except SettingsError as error:
        return _unknown(str(error))
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        return _unknown(f"{places.verdict} is no verdict ({type(error).__name__}: {error})")
    if verdict.status in _HARMLESS:
        _keep(places, verdict, marks)
    return verdict


def _parse(text: str, places: Places) -> HookVerdict:
    import json

    found = json.loads(text)
    if found["version"] != _VERSION:
        return _unknown(f"{places.verdict} has version {found['version']!r}, expected {_VERSION}")
    if found["boot_id"] != _boot_id():
        return _unknown("the last check was before this boot")
    failed = [row for row in found["checks"] if row["status"] == "critical"]
    reason = "; ".join(f"{row['name']}: {row['measured']}, expected {row['expected']}" for row in failed)
    return HookVerdict(
        status=str(found["status"]),
        age_s=time.time() - float(found["time_s"]),
        reason=" ".join(reason.split())[:500],
        failed_s=max((float(row["time_s"]) for row in failed), default=0.0),
    )


def _marks(path: str) -> str:
    """The identity of a file's content: device, inode, size, and times of modification and change."""
    facts = os.lstat(path)
    return f"{facts.st_dev}:{facts.st_ino}:{facts.st_size}:{facts.st_mtime_ns}:{facts.st_ctime_ns}"


def _known(places: Places, marks: str) -> HookVerdict | None:
    """The cached result for this very file; None if there is none."""
    try:
        found, status, time_s = read_of_root(places.verdict_read, 1 << 10).split()
        known = HookVerdict(status=status, age_s=time.time() - float(time_s), reason="")
    except (OSError, SettingsError, ValueError):
        return None
    return known if found == marks and status in _HARMLESS else None


def _keep(places: Places, verdict: HookVerdict, marks: str) -> None:
    try:
        write_of_root(places.verdict_read, f"{marks} {verdict.status} {time.time() - verdict.age_s:.3f}\n", 0o600)
    except OSError:
        pass  # the next hook reads the verdict itself


def _unknown(why: str) -> HookVerdict:
    return HookVerdict(status="unknown", age_s=0.0, reason=why)


def _boot_id() -> str:
    try:
        with open(_BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return ""
