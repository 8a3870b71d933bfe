"""Why a job or an attempt stops. The event `stop_requested` has the values."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """Why ranks are asked to stop, or the job to end. All but CANCEL stop at a step boundary, with a save."""

    CANCEL = "cancel"  # the job ends without training on
    HALT = "halt"  # a user has ended the job for good, so it is not requeued
    TIME_LIMIT = "time_limit"
    REQUEUE = "requeue"  # the scheduler ends the job to start it again
    PREEMPTED = "preempted"  # the job has to end, and starts again only if the supervisor requeues it
    BATCH_SCRIPT_LOST = "batch_script_lost"  # the same, because the job's batch script has ended
    RESIZE = "resize"  # only the attempt ends, so that one of another size can begin
