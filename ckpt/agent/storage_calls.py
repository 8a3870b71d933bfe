"""Blocking storage calls beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ckpt.errors import AgentError
from ckpt.timeouts import within

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Runs a call that storage may block for ever.

    Unlike asyncio.to_thread's the thread is a daemon: one that hangs on a dead file system neither uses up a pool nor
    keeps the process from ending. Cancelling stops the waiting, not the call.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(value)  # type: ignore[arg-type]
        else:
            result.set_exception(error)

    def work() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (function(*args), None)
        except BaseException as error:
            outcome = (None, error)
        try:
            loop.call_soon_threadsafe(settle, *outcome)
        except RuntimeError:
            return  # the loop has ended; nobody waits any more

    threading.Thread(target=work, name=getattr(function, "__name__", "storage"), daemon=True).start()
    return await result


async def in_time(timeout_s: float, function: Callable[..., T], *args: Any) -> T:
    """As `in_thread`; raises AgentError once `timeout_s` is over, and the call goes on by itself."""
    try:
        return await within(timeout_s, in_thread(function, *args))
    except asyncio.TimeoutError:
        raise AgentError(f"no answer within {timeout_s:g} s") from None
