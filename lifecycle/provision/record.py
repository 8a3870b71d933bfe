"""/var/lib/holdfast/provision.json: which steps were begun, and which are done. Losing it loses no work: steps look."""

from __future__ import annotations

import json
import time
from pathlib import Path

from lifecycle.files import publish

RECORD_FILE = "/var/lib/holdfast/provision.json"


class StepsRecord:
    """The steps' record of one node; every change is on disk before the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: dict[str, dict[str, str]] = {}
        try:
            found = json.loads(path.read_text())["steps"]
            self._steps = {str(name): dict(entry) for name, entry in found.items()}
        except (FileNotFoundError, ValueError, KeyError, AttributeError, TypeError):
            pass  # none yet, or torn by something else: every step looks for itself

    def interrupted(self, step: str) -> bool:
        """Whether the step was begun and not finished: what it left may look done and not be."""
        return self._steps.get(step, {}).get("state") == "begun"

    def begin(self, step: str) -> None:
        """Before the step changes anything."""
        self._set(step, "begun")

    def done(self, step: str) -> None:
        """After the step was verified; nothing is written where the record says so already."""
        if self._steps.get(step, {}).get("state") != "done":
            self._set(step, "done")

    def _set(self, step: str, state: str) -> None:
        self._steps[step] = {"state": state, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        publish(self._path, (json.dumps({"steps": self._steps}, indent=2) + "\n").encode())
