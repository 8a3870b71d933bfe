"""The step of each node now: steps.json in the job's folder.

Events have a job's step only at commits. The supervisor writes the steps of the heartbeats into this file every two
seconds, while they change. The file is no record: it may be late or missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from holdfast.base.files import durable_write
from holdfast.base.plain_file import read_json
from launcher.history.fields import is_count

_NAME = "steps.json"


@dataclass(frozen=True, kw_only=True)
class NodeSteps:
    """The steps of an attempt.

    Attributes:
        attempt: the attempt's number.
        step: the newest finished step of any rank.
        nodes: from node to the step of its slowest rank.
    """

    attempt: int
    step: int
    nodes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, job_dir: Path, attempt: int | None) -> NodeSteps | None:
        """Read the steps of an attempt; None if there are none, or they cannot be read."""
        try:
            steps = cls(**read_json(job_dir / _NAME))
        except (OSError, ValueError, TypeError):
            return None
        is_valid = is_count(steps.step) and isinstance(steps.nodes, dict) and all(map(is_count, steps.nodes.values()))
        return steps if is_valid and attempt is not None and steps.attempt == attempt else None

    def write(self, job_dir: Path) -> None:
        """Write the steps into a job's folder, in place of earlier ones."""
        durable_write(job_dir / _NAME, json.dumps(asdict(self)).encode(), sync=False)
