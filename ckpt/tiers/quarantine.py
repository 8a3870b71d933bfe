"""Bad steps set aside: renamed, so that no restore offers them and no retention counts them, and kept with the reason.

Renaming is one atomic act that every reader understands already: names that are no step's are passed over. A mark
inside would have to be looked for by each of them.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ckpt.record.files import dump_json, durable_write, sync_directory

_PREFIX, _REASON = "bad-", "reason.json"


def quarantine(folder: Path, name: str, reason: str) -> Path:
    """Sets a step's directory aside; the reason is there before the new name is.

    Args:
        folder: of the namespace.
        name: of the step's directory.
        reason: for people.

    Returns:
        Where it is now.
    """
    durable_write(folder / name / _REASON, dump_json({"reason": reason, "time": time.time()}))
    number, aside = 1, folder / f"{_PREFIX}{name}"
    while aside.exists():
        number += 1
        aside = folder / f"{_PREFIX}{name}.{number}"
    os.rename(folder / name, aside)
    sync_directory(folder)
    return aside


def quarantined(folder: Path) -> list[tuple[str, str]]:
    """The names and reasons of what was set aside."""
    return [(path.name, _reason(path)) for path in sorted(folder.glob(f"{_PREFIX}step-*"))]


def _reason(path: Path) -> str:
    try:
        return str(json.loads((path / _REASON).read_bytes()[:65536])["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"
