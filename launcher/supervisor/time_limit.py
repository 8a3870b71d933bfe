"""The job's time limit: whoever supervises stops the job in time, whether or not Slurm's warning reaches it.

Slurm sends the warning (`--signal=B:USR2@90`) to the batch script alone, and that is lost with its host.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from slurm import SlurmError

log = logging.getLogger(__name__)

MARGIN_S = 90.0  # as long before the end as the warning comes: to agree on a step, save it, and requeue the job
ASK_EVERY_S = 120.0  # the limit may be changed while the job runs


async def until_near(
    time_left_s: Callable[[], float | None],
    *,
    has_just_begun: bool,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Returns when MARGIN_S are left of the job's time; never where it has no limit.

    Args:
        time_left_s: asks the scheduler: `Cluster.time_left_s`. It blocks.
        has_just_begun: all of the job's time is still to come. Where that is little, half of it is used: the job would
            otherwise be requeued for ever without a step.
        sleep: seconds.
    """
    margin_s: float | None = None
    while True:
        wait_s = ASK_EVERY_S
        try:
            left_s = await asyncio.to_thread(time_left_s)
        except SlurmError as error:
            log.warning("time limit not known: %s", error)
        else:
            if left_s is not None:
                if margin_s is None:
                    margin_s = min(MARGIN_S, left_s / 2) if has_just_begun else MARGIN_S
                if left_s <= margin_s:
                    return
                wait_s = min(wait_s, left_s - margin_s)
        await sleep(wait_s)
