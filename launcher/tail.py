"""Reading files while others append to them."""

from __future__ import annotations

from pathlib import Path

from launcher.history.events import Event, parse_event
from launcher.plain_file import open_plain

_CHUNK_BYTES = 1 << 20


class Tail:
    """The whole lines of a growing file, each given once. A file that is not there yet is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""

    def lines(self) -> list[str]:
        """The lines completed since the last call."""
        try:
            with open_plain(self.path) as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def skip_to_last(self, count: int) -> None:
        """Leaves out all but about the last `count` lines, looking at the file's last MiB only."""
        try:
            with open_plain(self.path) as file:
                size = file.seek(0, 2)
                start = max(0, size - _CHUNK_BYTES)
                file.seek(start)
                data = file.read()
        except FileNotFoundError:
            return
        lines = data.split(b"\n")
        kept = lines[max(0, len(lines) - 1 - count) :] if count else lines[-1:]
        self._offset = start + len(data) - len(b"\n".join(kept))

    def rest(self) -> str:
        """What stands behind the last line end, of a file that grows no more."""
        rest, self._rest = self._rest, b""
        return rest.decode(errors="replace")

    def events(self) -> list[Event]:
        """The lines that hold an event, as events.jsonl has them."""
        return [event for line in self.lines() if (event := parse_event(line)) is not None]
