"""The status of a job without its whole history: fold.json in the job's folder.

The file has the fold of the events up to an offset of events.jsonl. Readers take it and fold only the events after that
offset, so the status of an old job costs no more than that of a new one. The supervisor writes the file as it writes
events. The job's owner also writes it when a status has read many events, so the history of a killed supervisor is read
once. Nobody writes into another user's folder.

The file is no record. One that is missing, damaged, of another release or for other events is as good as none: all
events are read again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.base.files import durable_write
from holdfast.base.plain_file import open_plain, read_json
from launcher.history.events import EventReader
from launcher.history.fields import as_event, is_number
from launcher.history.status import JobStatus, StatusFold

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_log = logging.getLogger(__name__)

FOLD_FILE = "fold.json"
STORE_EVERY = 1000  # events of the supervisor
_WORTH_A_WRITE_BYTES = 512 << 10  # events that a status has read
_MARK_BYTES = 4096


@dataclass(kw_only=True)
class _Content:
    """The file.

    Attributes:
        release: the release that has written it.
        offset: the fold has the events up to this byte.
        highest_term: the highest term among them.
        mark: SHA-256 of the bytes before the offset, `_MARK_BYTES` at most. With other events it differs.
        sum: SHA-256 of the fold as JSON.
        fold: the fold.
    """

    release: str
    offset: int
    highest_term: int
    mark: str
    sum: str
    fold: dict[str, Any] = field(default_factory=dict)


class StatusReader:
    """Reads the status of a job, from the stored fold and the events after it. Each call reads on from the last one.

    Args:
        job_dir: the job's folder.
    """

    def __init__(self, job_dir: Path) -> None:
        self._dir = job_dir
        self._path = job_dir / "events.jsonl"
        self._fold: StatusFold | None = None
        self._reader = EventReader(self._path)
        self._stored_bytes = 0

    def status(self, now_s: float | None = None) -> JobStatus:
        """The status after the last event.

        Args:
            now_s: the current time in seconds since the epoch; None: read the clock.

        Raises:
            OSError: the events cannot be read, or are a pipe, a socket or a device.
        """
        fold = self._read_on()
        if self._reader.offset - self._stored_bytes >= _WORTH_A_WRITE_BYTES and _is_ours(self._dir):
            self._try_write(fold)
        last = self._reader.torn()
        if last is not None:  # its line may still grow, so the fold that goes on does not have it
            fold = _decoded(_encoded(fold))
            fold.add(last)
        return fold.status(now_s)

    def store(self) -> None:
        """Read on and write fold.json.

        Raises:
            OSError: the events cannot be read, or the file cannot be written.
        """
        self._write(self._read_on())

    def _read_on(self) -> StatusFold:
        if self._fold is None or self._is_replaced():
            self._fold, self._reader = self._begin()
            self._stored_bytes = self._reader.offset
        for event in self._reader.new():
            self._fold.add(event)
        return self._fold

    def _is_replaced(self) -> bool:
        """Whether events.jsonl is shorter than what was read of it."""
        try:
            return self._path.stat().st_size < self._reader.offset
        except FileNotFoundError:
            return self._reader.offset > 0

    def _begin(self) -> tuple[StatusFold, EventReader]:
        """The stored fold and a reader of what comes after it; an empty fold where there is none."""
        try:
            read = _bounded(read_json(self._dir / FOLD_FILE))
            content = _adapter(_Content).validate_python(read)
            if content.release != _release() or content.sum != _sum(content.fold):
                raise ValueError("of another release, or damaged")
            if content.mark != _mark(self._path, content.offset):
                raise ValueError("it belongs to other events")
            fold = _decoded(content.fold)
        except FileNotFoundError:
            return StatusFold(), EventReader(self._path)
        except (OSError, ValueError, RecursionError) as error:  # pydantic's error is a ValueError
            _log.debug("%s is not used: %s", self._dir / FOLD_FILE, error)
            return StatusFold(), EventReader(self._path)
        return fold, EventReader(self._path, offset=content.offset, highest_term=content.highest_term)

    def _try_write(self, fold: StatusFold) -> None:
        try:
            self._write(fold)
        except OSError as error:  # the folder is read-only or was removed; the status is right all the same
            _log.debug("%s is not written: %s", self._dir / FOLD_FILE, error)
            self._stored_bytes = self._reader.offset

    def _write(self, fold: StatusFold) -> None:
        encoded = _encoded(fold)
        content = _Content(
            release=_release(),
            offset=self._reader.offset,
            highest_term=self._reader.highest_term,
            mark=_mark(self._path, self._reader.offset),
            sum=_sum(encoded),
            fold=encoded,
        )
        durable_write(self._dir / FOLD_FILE, json.dumps(vars(content)).encode())
        self._stored_bytes = self._reader.offset


@cache
def _release() -> str:
    return version("holdfast-hpc")


def _is_ours(job_dir: Path) -> bool:
    return job_dir.stat().st_uid == os.geteuid()


def _mark(events: Path, offset: int) -> str:
    with open_plain(events) as file:
        file.seek(max(0, offset - _MARK_BYTES))
        return hashlib.sha256(file.read(min(offset, _MARK_BYTES))).hexdigest()


def _sum(fold: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fold, sort_keys=True).encode()).hexdigest()


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _encoded(fold: StatusFold) -> dict[str, Any]:
    encoded: dict[str, Any] = _adapter(StatusFold).dump_python(fold, mode="json")
    return encoded


def _decoded(encoded: dict[str, Any]) -> StatusFold:
    """Raises ValueError for what is not a fold, or has an event that no reader would take."""
    fold: StatusFold = _adapter(StatusFold).validate_python(encoded)
    events = [as_event(event) for event in fold.recent]
    if None in events or fold.is_training > bool(fold.spans) or fold.pace.part_s < 1:
        raise ValueError("not a fold")
    return fold


def _bounded(value: Any) -> Any:
    """Checks that all numbers are within the bounds of those in events; raises ValueError."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _bounded(item)
    if isinstance(value, int | float) and not isinstance(value, bool) and not is_number(value):
        raise ValueError(f"the number {value!r}")
    return value
