"""Writes events in a separate thread, so that a file system that hangs does not block the supervisor's loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from launcher.history.events import Event, EventLog
from launcher.history.stored import STORE_EVERY, StatusReader
from launcher.leadership.lease import FolderRemovedError, Superseded

log = logging.getLogger(__name__)


class Recorder:
    """Keeps the order of the events. Call order: start; add and settled at any time; close.

    Args:
        events: the file of the events.
        check: called before each write. It raises Superseded if the event must not be written.
        superseded: called in the loop when `check` has raised Superseded. Nothing is written any more then.
        status: writes the stored fold of the events, now and then and at the end.
    """

    def __init__(
        self, events: EventLog, check: Callable[[], None], superseded: Callable[[], None], status: StatusReader
    ) -> None:
        self._events = events
        self._check = check
        self._superseded = superseded
        self._status = status
        self._count = 0
        self._queue: queue.SimpleQueue[Event | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_superseded = False

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, args=(loop,), name="events", daemon=True)
        self._thread.start()

    def add(self, event: str, **fields: Any) -> Event:
        """Queue an event for writing; returns the event."""
        record = self._events.make(event, **fields)
        self._queue.put(record)
        return record

    async def flushed(self) -> bool:
        """Write the queued events. Returns whether all events so far are in the file."""
        loop, done = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def flush() -> None:
            is_written = not self._is_superseded
            try:
                if is_written:
                    self._events.flush()
            except OSError:
                is_written = False
            _in_loop(loop, lambda: done.set_result(is_written))

        self._queue.put(flush)
        return await done

    async def settled(self) -> None:
        """Wait until a write of all events so far was tried. Events that could not be written are written later."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        self._queue.put(lambda: _in_loop(loop, done.set))
        await done.wait()

    async def close(self) -> None:
        """Wait until all added events were handled, and end the thread."""
        if self._thread is not None:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        while (item := self._queue.get()) is not None:
            if callable(item):
                item()
            elif not self._is_superseded:
                try:
                    self._check()
                except FolderRemovedError:
                    pass  # the task that renews the lease finds this too, and ends the job
                except Superseded:
                    self._is_superseded = True
                    _in_loop(loop, self._superseded)
                    continue
                with contextlib.suppress(OSError):
                    self._events.write(item)
                    self._store_if_due(item)

    def _store_if_due(self, event: Event) -> None:
        """Writes the stored fold after many events, and after the last one."""
        self._count += 1
        if self._count % STORE_EVERY == 0 or event["event"] == "job_end":
            try:
                self._status.store()
            except OSError as error:  # readers read the events themselves
                log.debug("the stored fold is not written: %s", error)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed
        loop.call_soon_threadsafe(call)
