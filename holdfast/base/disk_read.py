"""Reads files in a thread, so that a file system that hangs does not block the event loop."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class DiskRead(Generic[T]):
    """A blocking read that can be repeated. If the file system hangs, only one thread waits for it.

    Args:
        read: the read; it may block.
        path: the file that it reads, for messages.
    """

    def __init__(self, read: Callable[[], T], path: Path) -> None:
        self._read = read
        self._path = path
        self._reading: asyncio.Task[T] | None = None
        self._count = 0  # number of reads that have begun

    async def newest(self, timeout_s: float) -> T:
        """The result of a read that begins after this call. A running read is waited for, then a new one starts.

        Raises:
            TimeoutError: the file system has not answered within `timeout_s`. The read continues in its thread.
        """
        earlier, deadline_s = self._count, time.monotonic() + timeout_s
        while True:
            if self._reading is None or self._reading.done():
                self._count += 1
                self._reading = asyncio.create_task(asyncio.to_thread(self._read))
                self._reading.add_done_callback(_see)
            reading, number = self._reading, self._count
            await asyncio.wait({reading}, timeout=max(0.0, deadline_s - time.monotonic()))
            if not reading.done():
                raise TimeoutError(errno.ETIMEDOUT, f"no answer within {timeout_s:g} s", str(self._path))
            if number > earlier:
                return reading.result()


def _see(reading: asyncio.Task[T]) -> None:
    """Takes the task's exception, because no caller may wait for the task any more."""
    if not reading.cancelled():
        reading.exception()
