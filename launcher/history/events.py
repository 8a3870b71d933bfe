"""The job's single record: events.jsonl, one JSON object per line, written by the supervisor alone.

A line goes out in one O_APPEND write. A supervisor that dies in the middle of one leaves a torn last line: readers skip
it, and the next supervisor ends it before it writes its own. Each line carries its writer's term: one that a supervisor
has still written after another has taken over does not count. While the file cannot be written (disk full, file system
read-only or away) lines are kept and go out, in order, with a later one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from launcher.errors import LauncherError
from launcher.history.fields import Event, as_event
from launcher.plain_file import open_plain

log = logging.getLogger(__name__)

_LONGEST_LINE_BYTES = 16 << 20
_COMMON = ("attempt", "node", "step", "seconds")


class EventLog:
    """Appends to an events file, as its only writer.

    Args:
        path: the file; made 0600 if missing.
        lock: whether to refuse a file that another process writes. On Slurm the job's terms say who writes, on all
            nodes.

    Attributes:
        term: the writer's, in each event from when it is set.

    Raises:
        LauncherError: another process writes it.
    """

    def __init__(self, path: Path, *, lock: bool = True) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if lock:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise LauncherError(f"{path}: another supervisor runs this job; wait for its end or cancel it") from None
        except OSError as error:  # a shared file system without locks: Slurm itself runs a job only once
            log.debug("%s is not locked: %s", path, error)
        self.term: int | None = None
        self._unwritten = b""
        self._since_s: float | None = None  # when the file could first not be written
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._unwritten = b"\n"

    def append(self, event: str, **fields: Any) -> Event:
        """Makes one event and writes it, as far as the file takes it; returns it."""
        record = self.make(event, **fields)
        with contextlib.suppress(OSError):
            self.write(record)
        return record

    def make(self, event: str, **fields: Any) -> Event:
        """One event, to be written.

        Args:
            event: its name.
            fields: attempt, node, step, seconds (null if not given), time (now if not given) and whatever else the
                event carries.
        """
        record: Event = {"time": fields.pop("time", round(time.time(), 3)), "event": event}
        record |= {name: fields.pop(name, None) for name in _COMMON} | fields
        record |= {"term": self.term} if self.term is not None else {}
        return record

    def write(self, record: Event) -> None:
        """Writes an event, after those that could not be written before it. One thread at a time.

        Raises:
            OSError: it cannot be written; it is kept.
        """
        self._unwritten += json.dumps(record).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Writes what could not be written before.

        Raises:
            OSError: it still cannot be; nothing is lost.
        """
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._fd, self._unwritten) :]
        except OSError as error:
            if self._since_s is None:
                self._since_s = time.monotonic()
                log.warning("events cannot be written (%s): they are kept until they can", error.strerror)
            raise
        if self._since_s is not None:
            log.info("events could not be written for %.0f s; none is lost", time.monotonic() - self._since_s)
            self._since_s = None

    def close(self) -> None:
        os.close(self._fd)


def read_events(path: Path) -> list[Event]:
    """All whole events of a file that count, oldest first; none if there is no file.

    Raises:
        OSError: it cannot be read, or is a pipe, a socket or a device.
    """
    try:
        with open_plain(path) as file:
            return list(_of_those_who_ruled(event for line in _lines(file) if (event := parse_event(line)) is not None))
    except FileNotFoundError:
        return []


def parse_event(line: bytes | str) -> Event | None:
    """One line of the file; None if it holds no event."""
    try:
        return as_event(json.loads(line))
    except (ValueError, RecursionError):
        return None


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """A file's lines, up to one that is too long for an event: the rest may be endless."""
    while (line := file.readline(_LONGEST_LINE_BYTES)) and len(line) < _LONGEST_LINE_BYTES:
        yield line


def _of_those_who_ruled(events: Iterable[Event]) -> Iterator[Event]:
    """Without those that stand behind one of a higher term."""
    highest = 0
    for event in events:
        term = event.get("term")
        if isinstance(term, int):
            if term < highest:
                continue
            highest = term
        yield event
