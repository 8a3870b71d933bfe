"""Reads files to which other processes append. Reads in chunks, because a file may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO

from holdfast.base.plain_file import open_plain
from launcher.history.events import Event, parse_event

_CHUNK_BYTES = 1 << 20  # also the maximum length of a line; a longer line is split


class Tail:
    """Returns each complete line of a growing file once. A file that does not exist yet counts as empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def lines(self) -> Iterator[str]:
        """The lines that were completed between the previous call and the beginning of this one."""
        try:
            with open_plain(self.path) as file:
                end = file.seek(0, 2)
                file.seek(self._offset)
                while self._offset < end and (data := file.read(min(_CHUNK_BYTES, end - self._offset))):
                    self._offset += len(data)
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    if len(self._rest) >= _CHUNK_BYTES:
                        lines, self._rest = [*lines, self._rest], b""
                    yield from (line.decode(errors="replace") for line in lines)
        except FileNotFoundError:
            return

    def skip_to_last(self, count: int) -> int:
        """Skip all but the last `count` complete lines. Returns how many are left."""
        try:
            with open_plain(self.path) as file:
                self._offset, left = _start_of_last(file, count)
        except FileNotFoundError:
            return 0
        return left

    def rest(self) -> str:
        """The text after the last line end, of a file that does not grow any more."""
        rest, self._rest = self._rest, b""
        return rest.decode(errors="replace")

    def events(self) -> list[Event]:
        """The events in the new lines. Lines that are not events are skipped."""
        return [event for line in self.lines() if (event := parse_event(line)) is not None]


def _start_of_last(file: IO[bytes], count: int) -> tuple[int, int]:
    """The offset in bytes at which the last `count` complete lines of a file begin, and how many there are."""
    start, ends = file.seek(0, 2), 0
    first = max(0, start - (count + 1) * _CHUNK_BYTES)  # a line is no longer than a chunk
    while start > first:
        length = min(_CHUNK_BYTES, start)
        start -= length
        file.seek(start)
        data = file.read(length)
        end = len(data)
        while (end := data.rfind(b"\n", 0, end)) >= 0:
            ends += 1
            if ends > count:
                return start + end + 1, count
    return start, ends
