"""Blocking storage calls in threads, beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from ckpt.errors import AgentError
from holdfast.base.deadlines import within

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Runs a call in a thread, because storage may block it for ever.

    Unlike the threads of asyncio.to_thread this one is a daemon. If it hangs on a dead file system, it neither takes a
    place in a pool nor keeps the process alive. Cancelling ends the wait, not the call.
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
            return  # the loop has ended, so the result is not needed

    threading.Thread(target=work, name=getattr(function, "__name__", "storage"), daemon=True).start()
    return await result


async def in_time(timeout_s: float, function: Callable[..., T], *args: Any) -> T:
    """As `in_thread`. Raises AgentError after `timeout_s`; the call itself continues."""
    try:
        return await within(timeout_s, in_thread(function, *args))
    except TimeoutError:
        raise AgentError(f"no answer within {timeout_s:g} s") from None
