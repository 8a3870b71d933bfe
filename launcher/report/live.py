"""The facts of a job that runs: each call reads only what its supervisor has added to the record."""

from __future__ import annotations

import threading
from pathlib import Path

from launcher.history.events import Event, EventReader
from launcher.report.facts import FactsFold, RunFacts


class EventFollower:
    """Gives each event of a job once, in order, without those of a supervisor that was taken over.

    Args:
        events: the job's events.jsonl. A file that does not exist yet counts as empty.

    Attributes:
        replaced: how often the file had become shorter, as after a new run in an emptied folder. It is then read anew.
    """

    def __init__(self, events: Path) -> None:
        self._path = events
        self._reader = EventReader(events)
        self.replaced = 0

    def new(self) -> list[Event]:
        """The events since the last call.

        Raises:
            OSError: the file cannot be read, is a pipe, a socket or a device, or is another user's and very long.
        """
        if self._is_replaced():
            self._reader = EventReader(self._path)
            self.replaced += 1
        return list(self._reader.new())

    def _is_replaced(self) -> bool:
        try:
            return self._path.stat().st_size < self._reader.offset
        except FileNotFoundError:
            return self._reader.offset > 0


class LiveFacts:
    """Follows one job. Threads may share it.

    Args:
        events: the job's events.jsonl. A file that does not exist yet counts as empty.
    """

    def __init__(self, events: Path) -> None:
        self._follower = EventFollower(events)
        self._fold = FactsFold()
        self._replaced = 0
        self._lock = threading.Lock()

    def facts(self, now_s: float | None = None) -> RunFacts:
        """Read on, and return the facts after the last complete line.

        Raises:
            OSError: the file cannot be read, is a pipe, a socket or a device, or is another user's and very long.
        """
        with self._lock:
            events = self._follower.new()
            if self._follower.replaced != self._replaced:
                self._fold, self._replaced = FactsFold(), self._follower.replaced
            for event in events:
                self._fold.add(event)
            return self._fold.facts(now_s)
