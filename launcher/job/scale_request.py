"""The request for another number of nodes, which `holdfast scale` writes to a file in the job's folder.

The request is valid until the next one, so supervisors after a take-over or a requeue read it too.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.base.files import durable_write
from holdfast.base.plain_file import read_json

_NAME = "scale.json"


@dataclass(frozen=True, kw_only=True)
class ScaleRequest:
    """A user's request for a number of nodes.

    Attributes:
        host: the host on which the user made the request.
        nodes: number of nodes that are to train; None for the size in the job file.
        asked_s: time of the request, in seconds since the epoch.
    """

    host: str
    nodes: int | None
    asked_s: float = field(default_factory=time.time)

    @classmethod
    def read(cls, job_dir: Path) -> ScaleRequest | None:
        """Read the request in a job's folder; None if there is none, or it cannot be read."""
        try:
            request = cls(**read_json(job_dir / _NAME))
        except (OSError, ValueError, TypeError):
            return None
        nodes = request.nodes
        is_count = nodes is None or (isinstance(nodes, int) and not isinstance(nodes, bool) and nodes > 0)
        return request if is_count and isinstance(request.asked_s, int | float) else None

    def write(self, job_dir: Path) -> None:
        """Write the request into a job's folder, in place of an earlier one."""
        durable_write(job_dir / _NAME, json.dumps(asdict(self)).encode())

    @staticmethod
    def remove(job_dir: Path) -> None:
        """Remove the request after the job's end. A later run in the same folder begins with the job file's size."""
        (job_dir / _NAME).unlink(missing_ok=True)
