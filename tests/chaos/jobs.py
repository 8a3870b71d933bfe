"""The kinds of jobs that a campaign breaks: every redundancy scheme, elastic ones, one with its own checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broken_job import EVERY

OWN = Path(__file__).with_name("own_checkpoint.py")
_PACE = ["--pace-s", "0.05"]
HANG_S = 20.0  # under load a save of a node whose agent gets no CPU time takes up to ten seconds


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind.

    Attributes:
        job: keys of the job file, beside the fault suite's.
        redundancy: its section; None keeps no checkpoint of Holdfast's.
        tolerance: the number of nodes whose memory it may lose.
        s3: whether it has an S3 tier too.
    """

    job: Mapping[str, Any] = field(default_factory=dict)
    redundancy: Mapping[str, Any] | None
    tolerance: int
    s3: bool = False

    @property
    def has(self) -> dict[str, bool]:
        """What faults may need."""
        return {"checkpoint": self.redundancy is not None, "spares": self.job.get("spares", 1) > 0, "s3": self.s3}

    def changes(self, folder: Path, s3: Any) -> dict[str, Any]:
        """The keys of a job file in this folder."""
        restart = {"hang_timeout_s": HANG_S}
        job = {"args": _PACE, "time": "120", "spares": 2, "restart": restart, **self.job}
        if self.redundancy is None:
            return {**job, "checkpoint": None}
        checkpoint: dict[str, Any] = {
            "namespace": folder.name,
            "memory": {"every_steps": EVERY, "keep": 2},
            "redundancy": dict(self.redundancy),
            "shared": {"path": "checkpoints", "every_steps": 50, "keep": 2},
        }
        if s3 is not None:
            checkpoint["s3"] = {**s3.section(folder.name), "every_steps": 40, "keep": 2}
            passed = (f"{name}={value}" for name, value in s3.environment.items())
            job["slurm"] = {"export": ",".join(["ALL", *passed])}  # agents do not have the workers' `env`
        return {**job, "checkpoint": checkpoint}


JOBS = {
    "partner": Kind(redundancy={"scheme": "partner"}, tolerance=1),
    "partner3": Kind(job={"nodes": 3, "workers_per_node": 1}, redundancy={"scheme": "partner"}, tolerance=1),
    "xor": Kind(job={"nodes": 3, "workers_per_node": 1}, redundancy={"scheme": "xor"}, tolerance=1),
    "rs": Kind(job={"nodes": 3, "workers_per_node": 1}, redundancy={"scheme": "rs", "parity": 2}, tolerance=2),
    "none": Kind(redundancy={"scheme": "none"}, tolerance=0),
    "elastic": Kind(
        job={"nodes": 3, "workers_per_node": 1, "spares": 1, "elastic": {"min_nodes": 2}},
        redundancy={"scheme": "rs", "parity": 2},
        tolerance=2,
    ),
    "s3": Kind(redundancy={"scheme": "partner"}, tolerance=1, s3=True),
    "own": Kind(
        job={"script": str(OWN), "progress": "runs/*/own/*.pt"},
        redundancy=None,
        tolerance=0,
    ),
}
