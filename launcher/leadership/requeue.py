"""The requeue of a job by one of its own processes. Slurm's controller may be away then, or just starting."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from launcher.errors import NoAnswer
from slurm import Slurm, SlurmError

TIMEOUT_S = 1800.0  # as long as attempts wait for the scheduler (launcher.core.stages)
ASK_AGAIN_S = 1.0
_ASK_TIMES = 5

log = logging.getLogger(__name__)


def requeue(slurm: Slurm, job: str, restart_count: int) -> None:
    """Have Slurm end this start of a job and start the job again. Does nothing if another process has done so.

    Args:
        job: its id, or the task of an array.
        restart_count: how often it had been requeued before this start.

    Raises:
        NoAnswer: Slurm's controller does not answer at present.
        SlurmError: it refuses, also when asked again. A controller that has just started may refuse at first.
    """
    times = 0
    while True:
        try:
            slurm.requeue(job)
            return
        except SlurmError as refusal:
            try:
                record = slurm.job(job)
            except SlurmError as error:
                raise NoAnswer(str(refusal)) from error
            if record is None or record.restarts > restart_count:
                return
            times += 1
            if times == _ASK_TIMES:
                raise
        time.sleep(ASK_AGAIN_S)


async def until_answered(ask: Callable[[], None]) -> None:
    """Repeat a request for a requeue, in a thread, until Slurm answers it. A cancelled caller asks no more.

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
            log.warning("the job is not requeued yet, Slurm is asked again: %s", error)
        await asyncio.sleep(ASK_AGAIN_S)
