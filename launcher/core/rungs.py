"""How an attempt begins. The event `attempt_start` has the values."""

from __future__ import annotations

from enum import StrEnum


class Rung(StrEnum):
    """A rung of the recovery ladder, or another way in which an attempt begins."""

    START = "start"  # the first attempt of a run
    WORKERS = "workers"  # on the same nodes
    SPARE = "spare"  # a spare has taken a node's place
    SHRINK = "shrink"
    GROW = "grow"
    REQUEUE = "requeue"  # the scheduler has started the job again
    TAKEOVER = "takeover"  # another supervisor has taken over, and no attempt was running
