"""What this user's runs remember of a shared directory: its last step, and the file system that it was on.

If the file system is not mounted at the start of a later run, the directory looks empty. If an older copy has taken its
place, steps are missing. If the job file has moved, a relative path leads to another directory. The memory is one small
file for each namespace's folder in $XDG_STATE_HOME/holdfast/namespaces (default ~/.local/state), written at each commit
in the folder.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import xxhash

from ckpt.format.atomic_files import dump_json
from ckpt.format.line import Owner
from ckpt.format.shard_record import SaveId
from holdfast.base.files import durable_write

_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT = 4  # field of mountinfo, see proc(5)
_MOST_BYTES = 65536
_MOST_FILES = 200  # that are read to find another folder, the newest first

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The last step that a run of this user has written to a namespace's folder, and who saved it.

    `line` is the id of its line, `mount` the mount point of the folder's file system, `time_s` CLOCK_REALTIME.
    """

    folder: str
    mount: str
    step: int
    line: str
    time_s: float
    name: str
    script: str

    def is_among(self, saves: Iterable[SaveId]) -> bool:
        """Whether the step is there, or a newer one that continues it."""
        return any(save.step >= self.step and save.line.has(self.line, self.step) for save in saves)

    def __str__(self) -> str:
        return f"step {self.step} was saved in {self.folder} on {self.when}"

    @property
    def when(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.time_s))


def remember(folder: Path, save: SaveId, owner: Owner, env: Mapping[str, str] = os.environ) -> None:
    """Remember a save in a namespace's folder. A failure is logged only: the memory is a help, no promise."""
    path = _file(folder, env)
    if path is None:
        return
    seen = Seen(
        folder=str(folder), mount=mount_of(folder), step=save.step, line=save.line.id, time_s=time.time(),
        name=owner.name, script=owner.script,
    )  # fmt: skip
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable_write(path, dump_json(asdict(seen)), sync=False)
    except OSError as error:
        log.info("%s: not remembered: %s", folder, error)


def last_seen(folder: Path, env: Mapping[str, str] = os.environ) -> Seen | None:
    """What is remembered of a folder; None if nothing is."""
    path = _file(folder, env)
    return _read(path) if path else None


def seen_elsewhere(folder: Path, owner: Owner, env: Mapping[str, str] = os.environ) -> Seen | None:
    """The last step of this namespace that the same script of the same job has saved in another folder.

    None if it has not, or if nothing is there any more.
    """
    path = _file(folder, env)
    try:
        files = [entry for entry in os.scandir(path.parent) if entry.name.endswith(".json")] if path else []
        files = sorted(files, key=lambda entry: entry.stat().st_mtime, reverse=True)[:_MOST_FILES]
    except OSError:
        return None
    for seen in filter(None, (_read(Path(entry.path)) for entry in files)):
        there = Path(seen.folder)
        is_ours = (there.name, seen.name) == (folder.name, owner.name) and _is_same(seen.script, owner.script)
        if is_ours and owner.script and there != folder and there.exists():
            return seen
    return None


def why_absent(folder: Path, env: Mapping[str, str] = os.environ) -> str | None:
    """Why an empty folder is probably not the one that earlier runs have used; None if it may be.

    A folder that was removed stays on its file system. One whose file system is not mounted does not.
    """
    seen = last_seen(folder, env)
    if seen is None or (now := mount_of(folder)) == seen.mount:
        return None
    return f"{seen}, on the file system at {seen.mount}; now that folder is on the file system at {now}"


def mount_of(path: Path) -> str:
    """The mount point of the file system that a path is on, or would be on."""
    real = os.path.realpath(path)
    points = [line.split()[_MOUNT_POINT].replace("\\040", " ") for line in _MOUNTS.read_text().splitlines()]
    below = [point for point in points if real == point or real.startswith(f"{point.rstrip('/')}/")]
    return max(below, key=len, default="/")


def _is_same(script: str, other: str) -> bool:
    return os.path.realpath(script) == os.path.realpath(other)


def _read(path: Path) -> Seen | None:
    kinds = {"str": str, "int": int, "float": float}
    try:
        value = json.loads(path.read_bytes()[:_MOST_BYTES])
        seen = Seen(**{field.name: value[field.name] for field in fields(Seen)})
        is_sound = all(type(getattr(seen, field.name)) is kinds[str(field.type)] for field in fields(Seen))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return seen if is_sound and -1e11 < seen.time_s < 1e11 else None


def _file(folder: Path, env: Mapping[str, str]) -> Path | None:
    state = env.get("XDG_STATE_HOME") or (f"{env['HOME']}/.local/state" if env.get("HOME") else "")
    name = f"{xxhash.xxh3_64_hexdigest(os.path.abspath(folder).encode())}.json"
    return Path(state, "holdfast", "namespaces", name) if state else None
