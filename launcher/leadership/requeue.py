"""The requeue of a job by one of its own processes. The scheduler may be away then, or just starting."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from launcher.errors import NoAnswer

TIMEOUT_S = 1800.0  # as long as attempts wait for the scheduler (launcher.core.stages)
ASK_AGAIN_S = 1.0

log = logging.getLogger(__name__)


async def until_answered(ask: Callable[[], None]) -> None:
    """Repeat a request for a requeue, in a thread, until the scheduler answers it. A cancelled caller asks no more.

    Raises:
        NoAnswer: there was no answer within TIMEOUT_S.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            await asyncio.to_thread(ask)
            return
        except NoAnswer as error:
            if time.monotonic() >= deadline_s:
                raise
            log.warning("the job is not requeued yet, the scheduler is asked again: %s", error)
        await asyncio.sleep(ASK_AGAIN_S)
