"""Waiting for something until a deadline, and no longer than one is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(timeout_s: float | None, work: Awaitable[T]) -> T:
    """What the work returns or raises.

    In place of asyncio.wait_for, which before Python 3.12 forgets a cancellation that comes in the instant when the
    work ends (https://github.com/python/cpython/issues/86296): an agent that is told to end would then go on, and wait
    for answers that nobody gives any more.

    Args:
        timeout_s: None waits for as long as it takes.
        work: what is waited for.

    Raises:
        asyncio.TimeoutError: it has not ended within `timeout_s`, and is cancelled.
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
        raise asyncio.TimeoutError
    return task.result()


def _see(task: asyncio.Future[Any]) -> None:
    """Whoever waited may be gone: what the work raised is then nobody's."""
    if not task.cancelled():
        task.exception()
