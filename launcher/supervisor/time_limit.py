"""The job's time limit: whoever supervises stops the job in time, whether or not Slurm's warning reaches it.

Slurm sends the warning (`--signal=B:USR2@90`) to the batch script alone, and that is lost with its host. It may come a
minute early, and comes at once to a job whose limit is shorter than that (seen on 22.05).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from ckpt.timeouts import within
from slurm import SlurmError

log = logging.getLogger(__name__)

MARGIN_S = 90.0  # as long before the end as the warning comes: to agree on a step, save it, and requeue the job
ASK_EVERY_S = 120.0  # the limit may be changed while the job runs
SHORT_S = 600.0  # with more left, and in the first half of the job's time, a warning is not Slurm's but somebody's wish


async def _until_set(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await within(timeout_s, event.wait())


async def until_near(
    time_left_s: Callable[[], float | None],
    warned: asyncio.Event,
    *,
    has_just_begun: bool,
    pause: Callable[[asyncio.Event, float], Awaitable[None]] = _until_set,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Returns when MARGIN_S are left of the job's time, or when it is warned; never where it has no limit.

    Args:
        time_left_s: asks the scheduler: `Cluster.time_left_s`. It blocks.
        warned: set when somebody says that the limit is near.
        has_just_begun: all of the job's time is still to come. Where that is little, half of it is used: the job would
            otherwise be requeued for ever without a step.
        pause: waits for an event for so many seconds at most.
        clock: seconds, from any moment on.
    """
    begun_s = clock()
    half_s: float | None = None  # of the job's time
    is_warned = False
    while True:
        wait_s, left_s = ASK_EVERY_S, None
        is_warned |= warned.is_set()
        warned.clear()
        try:
            left_s = await asyncio.to_thread(time_left_s)
        except SlurmError as error:
            log.warning("time limit not known: %s", error)
        if left_s is not None:
            if half_s is None:
                used_s = clock() - begun_s  # an admin may have set the limit meanwhile
                half_s = (used_s + left_s) / 2 if has_just_begun else left_s
            margin_s = min(MARGIN_S, half_s)
            if is_warned:
                margin_s = half_s if left_s <= SHORT_S else left_s
            if left_s <= margin_s:
                return
            wait_s = min(wait_s, left_s - margin_s)
        elif is_warned:
            return
        await pause(warned, wait_s)
