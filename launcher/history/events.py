"""The job's single record: events.jsonl, one JSON object per line, written by the supervisor alone.

Each line is one O_APPEND write. A supervisor that dies during a write leaves a torn last line. Readers skip it, and the
next supervisor ends it before its own first line. Each line has the term of its writer. Readers ignore lines that a
supervisor has written after another one has taken over. While the file cannot be written (disk full, file system
read-only or not available), lines are kept and written later, in order.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.base.plain_file import open_plain
from launcher.errors import LauncherError
from launcher.history.fields import Event, as_event

log = logging.getLogger(__name__)

_LONGEST_LINE_BYTES = 16 << 20
_MOST_OF_OTHERS_BYTES = 16 << 20  # of a file of another user: about 80,000 commits
_COMMON = ("attempt", "node", "step", "seconds")


class EventLog:
    """Appends to an events file, as its only writer.

    Args:
        path: the file; made 0600 if missing.
        lock: whether to refuse a file that another process writes. On Slurm it is not needed, because of the terms.

    Attributes:
        term: the writer's term. Events have it from the moment at which it is set.

    Raises:
        LauncherError: another process writes the file.
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
        """Make an event and write it; returns the event. If the file cannot be written, the event is kept."""
        record = self.make(event, **fields)
        with contextlib.suppress(OSError):
            self.write(record)
        return record

    def make(self, event: str, **fields: Any) -> Event:
        """Make an event without writing it.

        Args:
            event: its name.
            fields: attempt, node, step, seconds (default null), time (default now), and the event's own fields.
        """
        record: Event = {"time": fields.pop("time", round(time.time(), 3)), "event": event}
        record |= {name: fields.pop(name, None) for name in _COMMON} | fields
        record |= {"term": self.term} if self.term is not None else {}
        return record

    def write(self, record: Event) -> None:
        """Write an event, after earlier events that could not be written. Only one thread may call this at a time.

        Raises:
            OSError: the event cannot be written. It is kept.
        """
        self._unwritten += json.dumps(record).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write the events that could not be written before.

        Raises:
            OSError: they still cannot be written. They are kept.
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


class EventReader:
    """Reads a file of events that another process appends to. Each call of new() reads on where the last one ended.

    Args:
        path: the file. A file that does not exist yet counts as empty.
        offset: where to begin; the end of a line.
        highest_term: the highest term before `offset`.

    Attributes:
        offset: the end of the last complete line that was read.
        highest_term: the highest term so far. Events of lower terms are left out.
    """

    def __init__(self, path: Path, *, offset: int = 0, highest_term: int = 0) -> None:
        self._path = path
        self.offset = offset
        self.highest_term = highest_term
        self._torn = b""
        self._is_at_end = False

    def new(self, only: tuple[str, ...] = ()) -> Iterator[Event]:
        """The valid events in new complete lines, oldest first. Stops for good at a line too long for an event.

        Args:
            only: the events that are wanted; empty for all. Other lines are not parsed, so name takeover among them,
                which has the new term.

        Raises:
            OSError: the file cannot be read, is a pipe, a socket or a device, or is another user's and very long.
        """
        self._torn = b""
        if self._is_at_end:
            return
        names = [b'"%s"' % name.encode() for name in only]
        try:
            file = open_plain(self._path, most_of_others=_MOST_OF_OTHERS_BYTES)
        except FileNotFoundError:
            return
        with file:
            file.seek(self.offset)
            while line := file.readline(_LONGEST_LINE_BYTES):
                if not line.endswith(b"\n"):
                    self._torn = line
                    self._is_at_end = len(line) == _LONGEST_LINE_BYTES
                    return
                self.offset += len(line)
                if names and not any(name in line for name in names):
                    continue
                if (event := parse_event(line)) is not None and self._is_of_ruler(event):
                    yield event

    def torn(self) -> Event | None:
        """The event in a last line whose line end is missing; None if it is not complete."""
        event = None if self._is_at_end else parse_event(self._torn)
        return event if event is not None and self._is_of_ruler(event) else None

    def _is_of_ruler(self, event: Event) -> bool:
        """Whether no event of a higher term came before this one."""
        term = event.get("term")
        if not isinstance(term, int):
            return True
        if term < self.highest_term:
            return False
        self.highest_term = term
        return True


def read_events(path: Path) -> list[Event]:
    """The valid events of a file, oldest first; empty if there is no file.

    Raises:
        OSError: the file cannot be read, is a pipe, a socket or a device, or is another user's and very long.
    """
    reader = EventReader(path)
    events = list(reader.new())
    last = reader.torn()
    return events if last is None else [*events, last]


def parse_event(line: bytes | str) -> Event | None:
    """The event in one line of the file; None if it has none."""
    try:
        return as_event(json.loads(line))
    except (ValueError, RecursionError):
        return None
