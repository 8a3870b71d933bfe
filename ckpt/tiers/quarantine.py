"""The names of quarantined steps, and the reasons. A tier renames the directory of a damaged step.

Readers ignore directories whose names are not of steps, so a renamed step is neither restored nor counted for
retention. In a node's memory a step has no directory; there a note next to its shards has the reason.
"""

from __future__ import annotations

import json
import time
from collections.abc import Container
from pathlib import Path

from ckpt.format.atomic_files import dump_json
from holdfast.base.files import durable_write

REASON = "reason.json"
_PREFIX = "bad-"  # on disk
QUARANTINED = f"{_PREFIX}step-"  # prefix of a quarantined step's directory


def note_quarantined(memory: Path, name: str, reason: str) -> None:
    """Write a note that a save in a node's memory is damaged.

    Args:
        name: the save's name, from `directory_name`.
    """
    durable_write(_note(memory, name), reason_json(reason), sync=False)


def noted_reason(memory: Path, name: str) -> str | None:
    """The reason in a save's note; None if there is no note."""
    try:
        return parse_reason(_note(memory, name).read_bytes())
    except FileNotFoundError:
        return None


def forget_notes(memory: Path, names: Container[str]) -> None:
    """Remove all notes, except those of these saves."""
    for path in memory.glob(f"{QUARANTINED}*.json"):
        if path.stem.removeprefix(_PREFIX) not in names:
            path.unlink()


def quarantined_name(name: str, existing: Container[str]) -> str:
    """A free name for a quarantined step. A number is added if the same step was quarantined before."""
    number, target = 1, f"{_PREFIX}{name}"
    while target in existing:
        number += 1
        target = f"{_PREFIX}{name}.{number}"
    return target


def reason_json(reason: str) -> bytes:
    """The reason as JSON, the content of its file."""
    return dump_json({"reason": reason, "time": time.time()})


def parse_reason(data: bytes) -> str:
    """The reason from the content of its file; "unknown" if it cannot be read."""
    try:
        return str(json.loads(data[:65536])["reason"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "unknown"


def _note(memory: Path, name: str) -> Path:
    return memory / f"{_PREFIX}{name}.json"
