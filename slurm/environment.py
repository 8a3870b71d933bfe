"""The environment variables that Slurm sets for a process inside a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm.errors import SlurmError
from slurm.hostlist import expand


class NotInJobError(SlurmError):
    """The environment is not that of a Slurm job, or is incomplete.

    Attributes:
        variable: the variable that is missing or wrong.
        exit_code: the command's exit code, that of a wrong request.
    """

    exit_code = 2

    def __init__(self, variable: str, problem: str) -> None:
        self.variable = variable
        super().__init__(
            f"environment: {variable} {problem}; start this inside a Slurm job (sbatch, srun or holdfast submit)"
        )


@dataclass(frozen=True, kw_only=True)
class JobEnvironment:
    """The job and this process's node, from Slurm's environment variables.

    Attributes:
        job_id: number of the job.
        reference: the job's name for scontrol and scancel. In an array a task's number may be that of the array.
        cluster: name of the cluster.
        partition: the partition in which the job runs.
        nodes: the nodes at the job's start. `Slurm.job` has those that are left.
        restart_count: number of requeues.
        node: name of this node.
    """

    job_id: int
    cluster: str
    partition: str
    nodes: tuple[str, ...]
    restart_count: int
    node: str
    reference: str

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> JobEnvironment:
        """Read the environment, for example `os.environ`.

        Raises:
            NotInJobError: it is not that of a process in a job.
            HostlistError: SLURM_JOB_NODELIST cannot be read.
        """
        return cls(
            job_id=_number(env, "SLURM_JOB_ID"),
            cluster=_text(env, "SLURM_CLUSTER_NAME"),
            partition=_text(env, "SLURM_JOB_PARTITION"),
            nodes=expand(_text(env, "SLURM_JOB_NODELIST")),
            restart_count=_number(env, "SLURM_RESTART_COUNT", 0),
            node=_text(env, "SLURMD_NODENAME"),
            reference=_reference(env),
        )


def _reference(env: Mapping[str, str]) -> str:
    if "SLURM_ARRAY_JOB_ID" not in env:
        return str(_number(env, "SLURM_JOB_ID"))
    return f"{_number(env, 'SLURM_ARRAY_JOB_ID')}_{_number(env, 'SLURM_ARRAY_TASK_ID')}"


def _text(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise NotInJobError(name, "is not set")
    return value


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    if default is not None and name not in env:
        return default
    value = _text(env, name)
    if not (value.isascii() and value.isdigit()):
        raise NotInJobError(name, f"is {value!r}, expected a number")
    return int(value)
