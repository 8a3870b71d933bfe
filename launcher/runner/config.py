"""What a runner needs to know, read once from its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher import domains
from launcher.errors import UsageError
from launcher.runner.memory import memory_dir


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """What a runner needs to know.

    Attributes:
        run_id: the run.
        node: this node's name.
        ram_dir: its memory directory.
        job_dir: the job's folder.
        host, port: the supervisor's address.
        parent_pid: end with this process, our parent; None where Slurm's step ends us.
        restart_count: how often the job had been requeued when this runner was started.
    """

    run_id: str
    node: str
    ram_dir: Path
    job_dir: Path
    host: str
    port: int
    parent_pid: int | None
    restart_count: int = 0
    switches: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> RunnerConfig:
        """Reads what the cluster set for this runner (a step task of Slurm knows its node from Slurm)."""
        if "HOLDFAST_SUPERVISOR" not in env:
            raise UsageError(
                "HOLDFAST_SUPERVISOR is not set: runners are started by a job's supervisor, see `holdfast run`"
            )
        host, _, port = env["HOLDFAST_SUPERVISOR"].rpartition(":")
        if not port.isdecimal():
            raise UsageError(f"HOLDFAST_SUPERVISOR={env['HOLDFAST_SUPERVISOR']!r:.200}, expected HOST:PORT")
        node = env.get("HOLDFAST_NODE") or env["SLURMD_NODENAME"]
        return cls(
            run_id=env["HOLDFAST_RUN_ID"],
            node=node,
            ram_dir=Path(env.get("HOLDFAST_RAM_DIR") or memory_dir(env["HOLDFAST_RUN_ID"])),
            job_dir=Path(env["HOLDFAST_JOB_DIR"]),
            host=host,
            port=int(port),
            parent_pid=int(env["HOLDFAST_SUPERVISOR_PID"]) if "HOLDFAST_SUPERVISOR_PID" in env else None,
            restart_count=int(env["HOLDFAST_RESTART_COUNT"]),
            switches=domains.from_environment(env),
        )
