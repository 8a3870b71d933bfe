"""The fields of each event in events.jsonl, and their types.

Readers decide about take-over and requeue from these events, so a line that was torn, edited or written by another
version must not stop them: a field of another type reads as null, and an event that lacks a required field is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Event = dict[str, Any]
Check = Callable[[Any], bool]

_LARGEST_NUMBER = 1e15  # of seconds: a date that the C library can still format
_LARGEST_COUNT = 1 << 63


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_NUMBER


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_COUNT


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _some_names(value: Any) -> bool:
    return _names(value) and bool(value)


COMMON: Mapping[str, Check] = {
    "time": _number,
    "attempt": _count,
    "node": _text,
    "step": _count,
    "seconds": _number,
    "term": _count,
}
FIELDS: Mapping[str, Mapping[str, Check]] = {
    "job_start": {"run_id": _text, "cluster": _text, "nodes_requested": _count, "spares": _count}
    | {"restart_count": _count},
    "node_ready": {"warm": _flag, "allocation": _text},
    "node_out": {"reason": _text, "environment": _flag, "lost": _flag},
    "node_back": {"allocation": _text},
    "node_leaving": {"allocation": _text, "reason": _text},
    "booster_asked": {"allocation": _text, "nodes": _count},
    "booster_waits": {"allocation": _text, "reason": _text},
    "booster_end": {"allocation": _text, "reason": _text},
    "scale_requested": {"nodes": _count},
    "resize": {"size": _count, "to": _count, "reason": _text},
    "holders_released": {"generation": _count, "nodes": _names},
    "takeover": {"predecessor": _text},
    "attempt_start": {"nodes": _some_names, "spares": _names, "rung": _text, "holders": _names},
    "workers_started": {},
    "own_checkpoint": {"file": _text, "modified": _number},
    "restore": {"tier": _text},
    "rebuilt": {"rank": _count, "from_node": _text, "tier": _text, "bytes": _count},
    "first_step": {},
    "commit": {"tier": _text, "bytes": _count},
    "agents_lost": {"generation": _count, "reason": _text},
    "agents_back": {"generation": _count},
    "problem": {"what": _text, "detail": _text, "failed": _text},
    "fault": {"kind": _text, "rank": _count, "reason": _text, "detect": _number, "traceback": _text},
    "backoff": {"reason": _text},
    "stop_requested": {"reason": _text, "detail": _text},
    "stop_agreed": {"boundary": _count},
    "attempt_end": {"outcome": _text},
    "job_end": {"outcome": _text, "reason": _text},
}
REQUIRED: Mapping[str, tuple[str, ...]] = {
    "node_ready": ("node",),
    "node_out": ("node",),
    "node_back": ("node",),
    "node_leaving": ("node", "allocation"),
    "booster_asked": ("allocation", "nodes"),
    "booster_waits": ("allocation",),
    "booster_end": ("allocation",),
    "scale_requested": ("nodes",),
    "resize": ("attempt", "to"),
    "holders_released": ("attempt", "generation"),
    "attempt_start": ("attempt", "nodes", "rung"),
    "workers_started": ("seconds",),
    "own_checkpoint": ("file", "modified"),
    "restore": ("step", "tier"),
    "first_step": ("seconds",),
    "commit": ("step", "tier"),
    "agents_lost": ("generation",),
    "agents_back": ("generation",),
    "fault": ("kind",),
}


def misfits(event: Mapping[str, Any]) -> list[str]:
    """The fields of an event that have another type than theirs."""
    checks = {**COMMON, **FIELDS.get(event["event"], {})}
    return [key for key, value in event.items() if value is not None and key in checks and not checks[key](value)]


def as_event(value: Any) -> Event | None:
    """A decoded line as an event that readers can trust; None if it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("event"), str):
        return None
    event = {**value, **dict.fromkeys(misfits(value))}
    needed = ("time", *REQUIRED.get(event["event"], ()))
    return event if all(event.get(key) is not None for key in needed) else None
