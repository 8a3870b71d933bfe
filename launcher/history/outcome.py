"""The outcome of a job with its reason, which stays in result.json."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.files import durable_write
from holdfast.base.plain_file import read_json
from launcher.core.outcomes import JobOutcome
from launcher.history.status import JobStatus

RESULT_FILE = "result.json"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        name: the outcome. UNSAVED: the script has ended well, and no step is in any lower tier. UNRESTORABLE: there are
            steps, and none can be restored.
        step: the newest finished step; None if none is known.
        reason: the reason in words; for done, the steps that are kept, and the saves that are missing.
        seconds: time since this supervisor started.
    """

    name: JobOutcome
    step: int | None
    reason: str
    seconds: float

    @property
    def exit_code(self) -> int:
        """The job's exit code."""
        return self.name.exit_code

    def to_mapping(self) -> dict[str, Any]:
        """The outcome as plain data: name, step, exit_code, reason, seconds."""
        return {
            "name": self.name.value,
            "step": self.step,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "seconds": self.seconds,
        }

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> Outcome:
        """The outcome from such data.

        Raises:
            ValueError, TypeError: it is not such data.
        """
        fields = {key: value for key, value in data.items() if key not in ("exit_code", "run_id")}
        return cls(**fields | {"name": JobOutcome(str(fields.get("name")))})

    @classmethod
    def read(cls, job_dir: Path) -> Outcome | None:
        """Read the outcome in a job's folder; None if there is none, or it cannot be read."""
        try:
            return cls.from_mapping(read_json(job_dir / RESULT_FILE))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, job_dir: Path, run_id: str) -> None:
        """Write the outcome into a job's folder, with the id of its run."""
        result = self.to_mapping() | {"run_id": run_id}
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
