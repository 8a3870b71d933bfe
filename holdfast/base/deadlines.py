"""Waits with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(timeout_s: float | None, work: Awaitable[T]) -> T:
    """Returns or raises the result of `work`, within a deadline.

    It replaces asyncio.wait_for. Before Python 3.12, wait_for loses a cancellation that arrives at the moment when the
    work ends (https://github.com/python/cpython/issues/86296). A cancelled agent would then continue, and wait for
    replies that never come. asyncio.timeout of Python 3.11.2, which Debian 12 has, raises CancelledError in place of
    TimeoutError in a task that has been cancelled before, and so in what a cancelled task still has to do.

    Args:
        timeout_s: the deadline in seconds; None: no deadline.
        work: the awaited work.

    Raises:
        asyncio.TimeoutError: the work has not ended within `timeout_s`, and is cancelled.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_see)
    try:
        await asyncio.wait([task], timeout=timeout_s)
    finally:
        if too_late := not task.done():
            task.cancel()
            await asyncio.wait([task])
    if too_late and task.cancelled():
        raise TimeoutError
    return task.result()


def _see(task: asyncio.Future[Any]) -> None:
    """Marks the work's exception as retrieved, because nobody may await it any more."""
    if not task.cancelled():
        task.exception()
