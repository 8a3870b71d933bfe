"""What follows a fault: the job file's `restart.on`, and the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from launcher.diagnosis.rules import Domain, FaultClass


class Action(StrEnum):
    """What is done after a fault.

    Attributes:
        STOP: the job ends.
        RETRY: the recovery ladder, also after the same error twice.
        SWAP: a spare takes the place of the node at fault; without one, the ladder.
        REQUEUE: the job is requeued; where it cannot be, the ladder.
    """

    STOP = "stop"
    RETRY = "retry"
    SWAP = "swap"
    REQUEUE = "requeue"


_OF_A_NODE = (FaultClass.GPU, FaultClass.FABRIC)


def action_for(
    fault_class: FaultClass, domain: Domain, chosen: Mapping[str, str], *, is_hopeless: bool
) -> Action | None:
    """The action after a fault; None: the recovery ladder alone decides.

    Args:
        chosen: the job file's `restart.on`: from class to action.
        is_hopeless: whether the fault is certain to come again, and the job has gained nothing yet.
    """
    if fault_class in chosen:
        return Action(chosen[fault_class])
    if is_hopeless:
        return Action.STOP
    return Action.SWAP if fault_class in _OF_A_NODE and domain is Domain.NODE else None
