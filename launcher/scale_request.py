"""The wish for another size, which `holdfast scale` leaves in the job's folder, as `holdfast stop` does its own.

The next supervisor, after a take-over or a requeue, finds it there: it holds until another one is left.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ckpt import durable_write
from launcher.plain_file import read_json

_NAME = "scale.json"


@dataclass(frozen=True, kw_only=True)
class ScaleRequest:
    """Which size a user wants.

    Attributes:
        host: where it was asked.
        nodes: that are to train.
        asked_s: when it was asked, in epoch seconds.
    """

    host: str
    nodes: int
    asked_s: float = field(default_factory=time.time)

    @classmethod
    def read(cls, job_dir: Path) -> ScaleRequest | None:
        """The request in a job's folder; None if there is none that can be read."""
        try:
            request = cls(**read_json(job_dir / _NAME))
        except (OSError, ValueError, TypeError):
            return None
        is_count = isinstance(request.nodes, int) and not isinstance(request.nodes, bool) and request.nodes > 0
        return request if is_count and isinstance(request.asked_s, int | float) else None

    def write(self, job_dir: Path) -> None:
        """Leaves it in a job's folder, in place of an earlier one."""
        durable_write(job_dir / _NAME, json.dumps(asdict(self)).encode())

    @staticmethod
    def remove(job_dir: Path) -> None:
        """The job has ended: a later run in the same folder begins with the size of its job file."""
        (job_dir / _NAME).unlink(missing_ok=True)
