"""What a submitted job returns or raises, by its outcome."""

from __future__ import annotations

from typing import Any

from launcher.core.outcomes import JobOutcome
from launcher.errors import JobFailed
from launcher.history.outcome import Outcome


def settle(name: str, outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of a job that is done.

    Raises:
        JobFailed: the job ended before it was done.
        SystemExit: the job has stopped and continues after a requeue. submitit writes no result then.
    """
    if outcome.name is JobOutcome.STOPPED:
        raise SystemExit(0)
    if outcome.exit_code:
        at_step = "" if outcome.step is None else f" at step {outcome.step}"
        because = f": {outcome.reason}" if outcome.reason else ""
        raise JobFailed(f"job {name}: {outcome.name}{at_step}{because}")
    return outcome.to_mapping()
