"""What this user's runs remember of a shared directory: its last step, and the file system that it was on.

If the file system is not mounted at the start of a later run, the directory looks empty. The memory is one small file
for each namespace in $XDG_STATE_HOME/holdfast/namespaces (default ~/.local/state), written at each attempt's first
commit in the directory.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

import xxhash

from ckpt.format.atomic_files import dump_json, durable_write

_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT = 4  # field of mountinfo, see proc(5)
_MOST_BYTES = 65536

log = logging.getLogger(__name__)


def remember(folder: Path, step: int, env: Mapping[str, str] = os.environ) -> None:
    """Remember a step of a namespace's folder. A failure is logged only: the memory is a help, no promise."""
    path = _file(folder, env)
    if path is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable_write(
            path, dump_json({"folder": str(folder), "mount": mount_of(folder), "step": step, "time": time.time()})
        )
    except OSError as error:
        log.info("%s: not remembered: %s", folder, error)


def why_absent(folder: Path, env: Mapping[str, str] = os.environ) -> str | None:
    """Why an empty folder is probably not the one that earlier runs have used; None if it may be.

    A folder that was removed stays on its file system. One whose file system is not mounted does not.
    """
    path = _file(folder, env)
    try:
        seen = json.loads(path.read_bytes()[:_MOST_BYTES]) if path else {}
        mount, step, time_s = str(seen["mount"]), int(seen["step"]), float(seen["time"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if (now := mount_of(folder)) == mount:
        return None
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(time_s))
    return f"{folder}: step {step} was saved there on {when}, on the file system at {mount}; now it is on that at {now}"


def mount_of(path: Path) -> str:
    """The mount point of the file system that a path is on, or would be on."""
    real = os.path.realpath(path)
    points = [line.split()[_MOUNT_POINT].replace("\\040", " ") for line in _MOUNTS.read_text().splitlines()]
    below = [point for point in points if real == point or real.startswith(f"{point.rstrip('/')}/")]
    return max(below, key=len, default="/")


def _file(folder: Path, env: Mapping[str, str]) -> Path | None:
    state = env.get("XDG_STATE_HOME") or (f"{env['HOME']}/.local/state" if env.get("HOME") else "")
    name = f"{xxhash.xxh3_64_hexdigest(os.path.abspath(folder).encode())}.json"
    return Path(state, "holdfast", "namespaces", name) if state else None
