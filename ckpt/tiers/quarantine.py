"""Quarantined steps: renamed, so that no restore offers them and no retention counts them, and kept with the reason.

A rename is understood by every reader already: names that are no step's are passed over. A mark inside would have to
be looked for by each of them. In a node's memory, where a step has no directory, a note lies beside its shards.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Container
from pathlib import Path

from ckpt.format.atomic_files import dump_json, durable_write, sync_directory

REASON = "reason.json"
_PREFIX = "bad-"  # on disk
QUARANTINED = f"{_PREFIX}step-"  # how the directory of a quarantined step begins


def quarantine(folder: Path, name: str, reason: str) -> Path:
    """Quarantines a step's directory; the reason is there before the new name is.

    Args:
        folder: of the namespace.
        name: of the step's directory.
        reason: for people.

    Returns:
        Where it is now.
    """
    durable_write(folder / name / REASON, reason_json(reason))
    target = folder / quarantined_name(name, os.listdir(folder))
    os.rename(folder / name, target)
    sync_directory(folder)
    return target


def note_quarantined(memory: Path, name: str, reason: str) -> None:
    """Notes that a save in a node's memory is damaged.

    Args:
        memory: the node's directory there.
        name: the save's, as `directory_name` makes it.
        reason: for people.
    """
    durable_write(_note(memory, name), reason_json(reason), sync=False)


def noted_reason(memory: Path, name: str) -> str | None:
    """The reason that was noted; None when the save is not known to be damaged."""
    try:
        return parse_reason(_note(memory, name).read_bytes())
    except FileNotFoundError:
        return None


def forget_notes(memory: Path, names: Container[str]) -> None:
    """Removes the notes of all saves but these."""
    for path in memory.glob(f"{QUARANTINED}*.json"):
        if path.stem.removeprefix(_PREFIX) not in names:
            path.unlink()


def quarantined_name(name: str, existing: Container[str]) -> str:
    """A name for a quarantined step that nothing has yet: a step may be saved again and be damaged again."""
    number, target = 1, f"{_PREFIX}{name}"
    while target in existing:
        number += 1
        target = f"{_PREFIX}{name}.{number}"
    return target


def reason_json(reason: str) -> bytes:
    """What is kept with the step."""
    return dump_json({"reason": reason, "time": time.time()})


def parse_reason(data: bytes) -> str:
    """The reason kept with a step; "unknown" where none can be read."""
    try:
        return str(json.loads(data[:65536])["reason"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "unknown"


def _note(memory: Path, name: str) -> Path:
    return memory / f"{_PREFIX}{name}.json"
