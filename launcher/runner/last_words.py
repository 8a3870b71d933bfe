"""The end of a worker's stderr, in memory shared with its elastic agent, so that it survives any exit."""

from __future__ import annotations

import mmap
from pathlib import Path

_BYTES = 4096
_LINES = 8


class LastWords:
    """Created before the fork. The worker writes, its parent reads."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BYTES)

    def write(self, data: bytes) -> None:
        """Adds data that the worker has written."""
        self._memory[:] = (self._memory[:] + data)[-_BYTES:]

    def read(self) -> str | None:
        """The last lines that are not empty; None if nothing was written. Of a progress bar, only its last state."""
        return _last_lines(self._memory[:].lstrip(b"\0"))


def end_of(log: Path) -> str | None:
    """The same for the log of a program that a worker has become, whose stdout and stderr are in one file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _BYTES))
            return _last_lines(file.read())
    except OSError:
        return None


def _last_lines(data: bytes) -> str | None:
    shown = [line.rstrip().rpartition("\r")[2] for line in data.decode(errors="replace").split("\n")]
    return "\n".join([line for line in shown if line.strip()][-_LINES:]) or None
