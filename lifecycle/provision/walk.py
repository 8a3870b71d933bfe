"""Runs the steps of a plan on a node."""

from __future__ import annotations

import contextlib
import enum
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.settings.errors import SettingsError
from lifecycle.errors import LifecycleError
from lifecycle.provision.record import RECORD_FILE, StepsRecord
from lifecycle.provision.step import ProvisionedNode, Step
from slurm.errors import SlurmError

_LOCK = "/run/holdfast/provision.lock"
_log = logging.getLogger(__name__)


class Ending(enum.Enum):
    """How a step ended."""

    SKIPPED = "skipped"
    NOTHING_TO_DO = "nothing to do"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """How one step ended.

    Attributes:
        step: name of the step.
        ending: how it ended.
        reason: why it was skipped or has failed; else "".
        seconds: how long it took.
    """

    step: str
    ending: Ending
    reason: str = ""
    seconds: float = 0.0


def walk(
    steps: Sequence[Step],
    node: ProvisionedNode,
    on_begin: Callable[[Step], None] = lambda step: None,
    on_end: Callable[[StepOutcome], None] = lambda outcome: None,
    before_change: Callable[[], None] = lambda: None,
) -> list[StepOutcome]:
    """Run the steps one after the other, until all have run or one fails.

    Args:
        steps: the steps in their order.
        node: the node that they work on.
        on_begin: called before each step.
        on_end: called with the outcome of each step.
        before_change: called before each step that changes the node.

    Returns:
        The outcomes of the steps that ran. Only the last one can be a failure.

    Raises:
        LifecycleError: another process provisions this node.
    """
    outcomes: list[StepOutcome] = []
    with _alone(node.path(_LOCK)):
        record = StepsRecord(node.path(RECORD_FILE))
        for step in steps:
            on_begin(step)
            outcome = _one(step, node, record, before_change)
            _log.info("%s: %s %s (%.1f s)", step.name, outcome.ending.value, outcome.reason, outcome.seconds)
            outcomes.append(outcome)
            on_end(outcome)
            if outcome.ending is Ending.FAILED:
                break
    return outcomes


def _one(step: Step, node: ProvisionedNode, record: StepsRecord, before_change: Callable[[], None]) -> StepOutcome:
    start_s = time.monotonic()

    def ended(ending: Ending, reason: str = "") -> StepOutcome:
        return StepOutcome(step=step.name, ending=ending, reason=reason, seconds=time.monotonic() - start_s)

    try:
        if reason := step.skip(node):
            return ended(Ending.SKIPPED, reason)
        if not record.interrupted(step.name) and step.is_done(node):
            record.done(step.name)
            return ended(Ending.NOTHING_TO_DO)
        before_change()
        record.begin(step.name)
        step.apply(node)
        step.verify(node)
        record.done(step.name)
        return ended(Ending.DONE)
    except (LifecycleError, SettingsError, SlurmError, OSError) as error:
        _log.exception("%s failed", step.name)
        return ended(Ending.FAILED, " ".join(str(error).split()))


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            raise LifecycleError(f"{lock}: process {holder} provisions this node; wait until it has ended") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
