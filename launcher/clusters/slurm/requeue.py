"""The requeue of a job by one of its own processes. Slurm's controller may be away then, or just starting."""

from __future__ import annotations

import time

from launcher.errors import NoAnswer
from launcher.leadership.requeue import ASK_AGAIN_S
from slurm import Slurm, SlurmError

_ASK_TIMES = 5


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
