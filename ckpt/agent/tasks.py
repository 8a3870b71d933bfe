"""Tasks with one owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class Tasks:
    """A set of asyncio tasks.

    The set keeps them alive, which the event loop does not. A `with` block cancels them at its end.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    def start(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Starts a task whose result is not awaited. Its error is logged."""
        task = self.hold(work)
        task.add_done_callback(_log_failure)
        return task

    def hold(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Starts a task whose result the caller awaits."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return task

    async def cancel(self) -> None:
        """Cancels all tasks except the calling one, and returns when they have ended."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Tasks:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cancel()

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved, even if the caller never awaits it


def _log_failure(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("%s failed", task, exc_info=error)
