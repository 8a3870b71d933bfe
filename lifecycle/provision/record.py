"""/var/lib/holdfast/provision.json: the state of each step, begun or done.

If the file is lost, no work is lost: each step checks the node itself before it changes anything.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from holdfast.base.files import publish

RECORD_FILE = "/var/lib/holdfast/provision.json"


class StepsRecord:
    """The record of one node's steps. Every change is on disk when the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps: dict[str, dict[str, str]] = {}
        try:
            found = json.loads(path.read_text())["steps"]
            self._steps = {str(name): dict(entry) for name, entry in found.items()}
        except (FileNotFoundError, ValueError, KeyError, AttributeError, TypeError):
            pass  # no record yet, or a damaged one: each step checks the node itself

    def interrupted(self, step: str) -> bool:
        """Whether the step has begun and not finished. `Step.is_done` may then be wrong, so the step runs again."""
        return self._steps.get(step, {}).get("state") == "begun"

    def begin(self, step: str) -> None:
        """Record that a step begins. Call this before the step changes anything."""
        self._set(step, "begun")

    def done(self, step: str) -> None:
        """Record that a step is done. Call this after the step was verified. Writes only if the state changes."""
        if self._steps.get(step, {}).get("state") != "done":
            self._set(step, "done")

    def _set(self, step: str, state: str) -> None:
        self._steps[step] = {"state": state, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        publish(self._path, (json.dumps({"steps": self._steps}, indent=2) + "\n").encode())
