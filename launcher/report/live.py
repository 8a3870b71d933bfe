"""The facts of a job that runs: each call reads only what its supervisor has added to the record."""

from __future__ import annotations

import threading
from pathlib import Path

from launcher.history.events import Event
from launcher.report.facts import FactsFold, RunFacts
from launcher.tail import Tail


class LiveFacts:
    """Follows the events of one job. Threads may share it.

    Args:
        events: the job's events.jsonl. A file that does not exist yet counts as empty.
    """

    def __init__(self, events: Path) -> None:
        self._path = events
        self._lock = threading.Lock()
        self._begin()

    def new_events(self) -> list[Event]:
        """Read on, and return the events since the last call.

        Raises:
            OSError: the file cannot be read, or is a pipe, a socket or a device.
        """
        with self._lock:
            return self._read_on()

    def facts(self, now_s: float | None = None) -> RunFacts:
        """Read on, and return the facts after the last complete line.

        Raises:
            OSError: as in new_events().
        """
        with self._lock:
            self._read_on()
            return self._fold.facts(now_s)

    def _begin(self) -> None:
        self._tail = Tail(self._path)
        self._fold = FactsFold()
        self._highest_term = 0
        self._size_bytes = 0

    def _read_on(self) -> list[Event]:
        if self._is_replaced():
            self._begin()
        events = [event for event in self._tail.events() if self._is_of_ruler(event)]
        for event in events:
            self._fold.add(event)
        return events

    def _is_replaced(self) -> bool:
        """Whether the file is shorter than it was, as after a run in an emptied folder."""
        try:
            before, self._size_bytes = self._size_bytes, self._path.stat().st_size
        except FileNotFoundError:
            return self._size_bytes > 0
        return self._size_bytes < before

    def _is_of_ruler(self, event: Event) -> bool:
        """Whether no other supervisor has taken over before this event; see `launcher.history.events`."""
        term = event.get("term")
        if term is None:
            return True
        self._highest_term = max(self._highest_term, term)
        return bool(term == self._highest_term)
