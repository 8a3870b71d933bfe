"""What a runner needs to know, read once from its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.env import failure_domains
from launcher.errors import UsageError
from launcher.runner.memory import memory_of

ALLOCATION = "HOLDFAST_ALLOCATION"  # only in boosters: their own allocation


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
        allocation: the Slurm job that the node belongs to; "local" on the local cluster.
        is_booster: whether that is a further allocation of the run, not the one that it started with.
    """

    run_id: str
    node: str
    ram_dir: Path
    job_dir: Path
    host: str
    port: int
    parent_pid: int | None
    restart_count: int = 0
    allocation: str = "local"
    is_booster: bool = False
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
        run_id, booster = env["HOLDFAST_RUN_ID"], env.get(ALLOCATION)
        return cls(
            run_id=run_id,
            node=node,
            ram_dir=Path(env.get("HOLDFAST_RAM_DIR") or memory_of(run_id, booster)),
            job_dir=Path(env["HOLDFAST_JOB_DIR"]),
            host=host,
            port=int(port),
            parent_pid=int(env["HOLDFAST_SUPERVISOR_PID"]) if "HOLDFAST_SUPERVISOR_PID" in env else None,
            restart_count=int(env["HOLDFAST_RESTART_COUNT"]),
            allocation=booster or env.get("SLURM_JOB_ID") or "local",
            is_booster=booster is not None,
            switches=failure_domains.from_environment(env),
        )
