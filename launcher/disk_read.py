"""Reads of a file system that may hang, for an event loop that must not."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class DiskRead(Generic[T]):
    """One read, repeated. While the file system hangs, one thread waits for it, however often it is asked.

    Args:
        read: reads; it blocks.
        path: what it reads, for messages.
    """

    def __init__(self, read: Callable[[], T], path: Path) -> None:
        self._read = read
        self._path = path
        self._reading: asyncio.Task[T] | None = None
        self._count = 0  # of the reads begun

    async def newest(self, timeout_s: float) -> T:
        """What a read gives that begins now, or when the one under way has ended.

        Raises:
            TimeoutError: the file system has not answered within `timeout_s`; the read goes on.
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
    """Nobody may wait for it any more."""
    if not reading.cancelled():
        reading.exception()
