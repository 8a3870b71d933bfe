"""The request to save and end a job for good, which `holdfast stop` writes to a file in the job's folder.

It is a file for two reasons. `holdfast stop` may have no connection to the supervisor. And the next supervisor, after a
take-over or a requeue, reads it too.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.base.files import durable_write
from holdfast.base.plain_file import read_json

_NAME = "stop.json"


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """A user's request to stop.

    Attributes:
        host: the host on which the user made the request.
        at_step: stop at this step or later; None for any step.
        at_s: stop at this time or later, in seconds since the epoch; None for now.
        asked_s: time of the request, in seconds since the epoch.
        is_served: whether the job was removed from Slurm's queue, so that no supervisor has to act.
    """

    host: str
    at_step: int | None = None
    at_s: float | None = None
    asked_s: float = field(default_factory=time.time)
    is_served: bool = False

    @classmethod
    def read(cls, job_dir: Path) -> StopRequest | None:
        """Read the request in a job's folder; None if there is none, or it cannot be read."""
        try:
            request = cls(**read_json(job_dir / _NAME))
        except (OSError, ValueError, TypeError):
            return None
        numbers = (request.at_step or 0, request.at_s or 0, request.asked_s)
        return request if all(isinstance(number, int | float) for number in numbers) else None

    def write(self, job_dir: Path) -> None:
        """Write the request into a job's folder, in place of an earlier one."""
        durable_write(job_dir / _NAME, json.dumps(asdict(self)).encode())

    @staticmethod
    def remove(job_dir: Path) -> None:
        """Remove the request after the job's end, so that a later run in the same folder does not stop."""
        (job_dir / _NAME).unlink(missing_ok=True)

    def __str__(self) -> str:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.at_s or 0))
        when = [f"after step {self.at_step}"] if self.at_step else []
        when += [f"after {clock}"] if self.at_s else []
        return f"{' and '.join(when) or 'at the next step that all ranks agree on'} (asked on {self.host})"
