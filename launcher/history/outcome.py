"""How a job ends, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.base.files import durable_write
from holdfast.base.plain_file import read_json
from launcher.history.status import JobStatus

RESULT_FILE = "result.json"
EXIT_CODES = {
    "done": 0,
    "stopped": 0,
    "halted": 0,
    "superseded": 0,
    "internal": 1,
    "user_error": 10,
    "no_progress": 11,
    "too_few_nodes": 12,
    "cancelled": 13,
    "fabric": 14,
    "unsaved": 15,
    "unrestorable": 16,
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        name: done, stopped (continues after a requeue), halted (saved and ended on a user's request), user_error,
            no_progress, too_few_nodes, cancelled, fabric, unsaved (the script has ended well, and no step is in any
            lower tier), unrestorable (there are steps, and none can be restored), internal, or superseded (another
            supervisor decides).
        step: the newest finished step; None if none is known.
        exit_code: the job's exit code for this outcome.
        reason: the reason in words; for done, the steps that are kept, and the saves that are missing.
        seconds: time since this supervisor started.
    """

    name: str
    step: int | None
    exit_code: int
    reason: str
    seconds: float

    @classmethod
    def read(cls, job_dir: Path) -> Outcome | None:
        """Read the outcome in a job's folder; None if there is none, or it cannot be read."""
        try:
            result = read_json(job_dir / RESULT_FILE)
            result.pop("run_id", None)
            return cls(**result)
        except (OSError, ValueError, TypeError):
            return None

    def write(self, job_dir: Path, run_id: str) -> None:
        """Write the outcome into a job's folder, with the id of its run."""
        result = asdict(self) | {"run_id": run_id}
        durable_write(job_dir / RESULT_FILE, json.dumps(result, indent=1).encode() + b"\n")


def kept(status: JobStatus, why_unsaved: str) -> str:
    """The reason of a halted job: the steps that remain in tiers below memory. Memory is freed with the job.

    Args:
        status: the job's status.
        why_unsaved: why the ranks did not save at the stop; "" if they did.
    """
    unsaved_at_stop = f"the ranks did not save in the stop: {why_unsaved}; " if why_unsaved else ""
    steps = _below_memory(status) or "no step: none was saved below memory"
    return f"stopped for good, as asked; {unsaved_at_stop}kept: {steps}"


def done(status: JobStatus) -> str:
    """The reason of a job that is done: where its newest step is, and each time it has not continued the newest one."""
    words = []
    if status.idle_at is not None:
        words.append(f"made no step: the script loaded step {status.idle_at}, and ended there")
    if status.committed:
        words.append(f"kept: {_below_memory(status) or 'no step: memory is freed with the job'}")
    return "; ".join([*words, *status.went_back])


def is_unsaved(status: JobStatus, tiers: Collection[str]) -> bool:
    """Whether a job that is done has tried to save, and no lower tier has a step.

    Args:
        tiers: the names of the lower tiers that the job file asks for.
    """
    has_tried = bool(status.committed or status.failed_saves)
    return bool(tiers) and has_tried and not any(tier in status.committed for tier in tiers)


def _below_memory(status: JobStatus) -> str:
    lower = {tier: step for tier, step in status.committed.items() if tier != "memory"}
    return ", ".join(f"step {step} in {tier}" for tier, step in lower.items())


def unsaved(status: JobStatus) -> str:
    """The saves that a finished job is missing, by tier, with the reason; "" if there are none."""
    lost = []
    for tier, why in status.unsaved.items():
        newest = status.committed.get(tier)
        there = "no step is there" if newest is None else f"the newest step there is {newest}"
        lost.append(f"not saved in {tier}: {there} ({why})")
    return "; ".join(lost)
