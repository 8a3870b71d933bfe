"""The runner's configuration, read once from its environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base.environment import Variable
from launcher.env import failure_domains
from launcher.errors import UsageError
from launcher.runner.memory import memory_of
from launcher.scheduler import scheduler_of


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """The runner's configuration.

    Attributes:
        run_id: the run.
        node: this node's name.
        ram_dir: the node's memory directory.
        job_dir: the job's folder.
        host, port: the supervisor's address.
        parent_pid: the parent process, with which the runner ends; None if Slurm's step ends the runner.
        restart_count: number of the job's requeues when this runner was started.
        allocation: the allocation that the node belongs to: a booster's number, or `Cluster.allocation`.
        is_booster: whether that is a booster's allocation.
        machine_gpus: the GPUs of this machine, which the nodes of the local cluster share; None on Slurm, which gives
            each node its own, and where there are none.
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
    machine_gpus: tuple[str, ...] | None = None
    switches: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> RunnerConfig:
        """Reads the variables that the cluster has set for this runner.

        In a Slurm step, Slurm gives the node's name.
        """
        if Variable.SUPERVISOR not in env:
            raise UsageError(
                f"{Variable.SUPERVISOR} is not set: runners are started by a job's supervisor, see `holdfast run`"
            )
        host, _, port = env[Variable.SUPERVISOR].rpartition(":")
        if not port.isdecimal():
            raise UsageError(f"{Variable.SUPERVISOR}={env[Variable.SUPERVISOR]!r:.200}, expected HOST:PORT")
        run_id, booster = env[Variable.RUN_ID], env.get(Variable.ALLOCATION)
        scheduler = scheduler_of(run_id)
        place = scheduler.place(env)
        own_job = None if booster is None or place is None else place.allocation
        return cls(
            run_id=run_id,
            node=env[Variable.NODE] if place is None else place.node,
            ram_dir=Path(env.get(Variable.RAM_DIR) or memory_of(run_id, own_job)),
            job_dir=Path(env[Variable.JOB_DIR]),
            host=host,
            port=int(port),
            parent_pid=int(env[Variable.SUPERVISOR_PID]) if Variable.SUPERVISOR_PID in env else None,
            restart_count=int(env[Variable.RESTART_COUNT]),
            allocation=booster or (scheduler.name if place is None else place.allocation),
            is_booster=booster is not None,
            machine_gpus=tuple(env[Variable.MACHINE_GPUS].split(",")) if Variable.MACHINE_GPUS in env else None,
            switches=failure_domains.from_environment(env),
        )
