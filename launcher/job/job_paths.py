"""Paths in a job file: `~` and variables are expanded once, where the job is submitted.

`$UID` is the user's number, although shells do not export it: Slurm's prolog names a user's directories by it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

_PATHS = (("script",), ("progress",), ("checkpoint", "shared", "path"), ("checkpoint", "nvme", "path"))
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")


def with_paths_expanded(data: dict[str, Any], found: dict[tuple[str | int, ...], str]) -> dict[str, Any]:
    """Expands `~` and variables in the paths of a job file, as a shell does. Adds problems to `found`."""
    for place in _PATHS:
        section = data
        for name in place[:-1]:
            if not isinstance(below := section.get(name), Mapping):
                section = {}
                break
            section[name] = section = dict(below)
        path = section.get(place[-1])
        if isinstance(path, str) and (path.startswith("~") or "$" in path):
            section[place[-1]] = expanded = os.path.expanduser(_VARIABLE.sub(_value, path))
            if expanded.startswith("~") or _VARIABLE.search(expanded):
                found[place] = f"got {path!r:.80}, expected a path whose user and variables exist at submission"
    return data


def _value(variable: re.Match[str]) -> str:
    """The value of a variable; the text itself if it has none."""
    name = variable[1].strip("{}")
    return os.environ.get(name, str(os.getuid()) if name == "UID" else variable[0])
