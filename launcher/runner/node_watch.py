"""What a node sees during an attempt: kills for lack of memory in its cgroup, and messages of its kernel."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

from launcher.diagnosis.match import telling

_KMSG = Path("/dev/kmsg")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_MOST_LINES = 8
_MOST_RECORDS = 10_000
_OF_PROCESS = re.compile(r".{0,60}?\[\d+\]: ")  # begins with the name of a user's process


class NodeWatch:
    """Call order: begin() at an attempt's start, collect() once its workers have ended.

    Users may often not read the kernel's messages (`dmesg_restrict`); then there are none.

    Args:
        kmsg: the kernel's messages.
        cgroups, own_cgroups: the mounted cgroups, and the file that names those of this process.
    """

    def __init__(self, kmsg: Path = _KMSG, cgroups: Path = _CGROUPS, own_cgroups: Path = _OWN_CGROUPS) -> None:
        self._kmsg = kmsg
        self._events = _memory_events(cgroups, own_cgroups)
        self._kills = 0
        self._messages: int | None = None  # an open file, behind the messages before the attempt

    def begin(self) -> None:
        self._kills = self._count_kills()
        self.close()
        with contextlib.suppress(OSError):
            self._messages = os.open(self._kmsg, os.O_RDONLY | os.O_NONBLOCK)
            os.lseek(self._messages, 0, os.SEEK_END)

    def collect(self) -> dict[str, Any]:
        """The fields of the message "ended" that tell what the node saw since begin()."""
        return {"oom_kills": max(0, self._count_kills() - self._kills), "kernel": telling(self._read(), _MOST_LINES)}

    def close(self) -> None:
        if self._messages is not None:
            os.close(self._messages)
            self._messages = None

    def _count_kills(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            for line in self._events.read_text().splitlines() if self._events else ():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
        return 0

    def _read(self) -> list[str]:
        lines = []
        for _ in range(_MOST_RECORDS if self._messages is not None else 0):
            try:
                record = os.read(self._messages or 0, 1 << 16)
            except BrokenPipeError:  # messages were overwritten before they were read
                continue
            except OSError:
                break
            if not record:
                break
            _, _, text = record.decode(errors="replace").partition(";")
            lines += text.splitlines()[:1]
        return [line for line in lines if not _OF_PROCESS.match(line)]


def _memory_events(cgroups: Path, own_cgroups: Path) -> Path | None:
    """The file with the number of kills in this process's cgroup, of version 2 or 1."""
    with contextlib.suppress(OSError):
        for line in own_cgroups.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            inside = path.lstrip("/")
            if not controllers and (cgroups / inside / "memory.events").exists():
                return cgroups / inside / "memory.events"
            if "memory" in controllers.split(","):
                return cgroups / "memory" / inside / "memory.oom_control"
    return None
