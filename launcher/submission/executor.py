"""A submitit executor for supervised jobs, which survive the loss of nodes.

executor = Executor(folder="runs/%j")
executor.update_parameters(nodes=8, spares=1, gpus_per_node=8, timeout_min=1440, slurm_partition="train")
job = executor.submit(Torchrun("train.py", "--lr", "3e-4"))
job.result()
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from submitit import Job

from launcher.errors import UsageError
from launcher.job import gpus
from launcher.job.jobfile import JobSpec
from launcher.job.module_names import check_modules
from launcher.job.registry import KnownJob, remember
from launcher.scheduler import found_here, run_liveness, scheduler
from launcher.submission.in_allocation import run_here
from launcher.submission.request import make_folder, with_job_id
from launcher.submission.submitit_base import DelayedSubmission, ExecutorBase, JobPaths

_log = logging.getLogger(__name__)
# update_parameters() names that describe the job itself -> the job file's names.
_JOB_PARAMETERS = {
    "name": "name",
    "nodes": "nodes",
    "spares": "spares",
    "gpus_per_node": "gpus_per_node",
    "workers_per_node": "workers_per_node",
    "timeout_min": "time",
}


@dataclasses.dataclass(frozen=True, init=False)
class Torchrun:
    """A training program to run on every node under torch elastic, as torchrun would.

    Pass it to `Executor.submit`. Or call it inside a job of any other executor, or on a laptop: the script then runs
    there, and the call returns the outcome. See `launcher.submission.in_allocation`.

    Args:
        script: path of the script; relative to the working directory at submission.
        args: its arguments.
        module: whether `script` is a module's name, as torchrun's -m.
        no_python: whether `script` is any other program, as torchrun's --no-python. Such a job needs a `name`.
        options: further keys of the job file: name, workers_per_node, env, restart, checkpoint, slurm.

    Raises:
        UsageError: both `module` and `no_python` are true.
    """

    script: str
    args: tuple[str, ...]
    key: str
    options: Mapping[str, Any]

    def __init__(
        self,
        script: str | os.PathLike[str],
        *args: str,
        module: bool = False,
        no_python: bool = False,
        **options: Any,
    ) -> None:
        if module and no_python:
            raise UsageError("Torchrun: got module and no_python, expected one of them at most")
        object.__setattr__(self, "script", os.fspath(script))
        object.__setattr__(self, "args", args)
        object.__setattr__(self, "key", "module" if module else "command" if no_python else "script")
        object.__setattr__(self, "options", options)

    def mapping(self, *args: str) -> dict[str, Any]:
        """The same job as keys of a job file, with further arguments for the script."""
        program = [self.script] if self.key == "command" else self.script
        return {**self.options, self.key: program, "args": [*self.args, *args]}

    def __call__(self, *args: str) -> dict[str, Any]:
        """Run the script on the nodes of the current Slurm job; outside of Slurm, on the local cluster.

        Returns:
            The outcome as plain data: name, step, exit_code, reason, seconds.

        Raises:
            JobFailed: the job ended before it was done.
            UsageError: the options are not valid.
            SystemExit: the job has stopped, and continues when Slurm has requeued the current job.
        """
        return run_here(self.mapping(*args), f"Torchrun({self.script!r})")

    def checkpoint(self, *args: str) -> DelayedSubmission:
        """submitit runs the result after a requeue: the same script, which continues from its checkpoints."""
        return DelayedSubmission(self, *args)


class Executor(ExecutorBase):
    """A submitit executor for supervised training jobs.

    It has the parameters of submitit's AutoExecutor. update_parameters() has two more: `spares` (warm nodes that
    replace lost ones) and `workers_per_node`. Submissions in one batch() with the same sbatch options become one job
    array. Each job of the array has its own nodes, folder and supervisor.

    Args:
        folder: the folder of each job's files. %j stands for the job's id and is added if it is missing. On Slurm the
            folder must be on a file system that all nodes share.
        cluster: the scheduler's name; None: Slurm if srun is found, else local. See `launcher.scheduler.SCHEDULERS`.
        kwargs: arguments of submitit's executors, prefixed by the cluster's name: slurm_python=...

    Raises:
        UsageError: there is no such cluster, or the folder cannot be written.
    """

    def __init__(self, folder: Path | str = "runs/%j", cluster: str | None = None, **kwargs: Any) -> None:
        cluster = cluster or found_here()
        self._scheduler = scheduler(cluster)
        folder = with_job_id(folder)
        _check_writable(JobPaths.get_first_id_independent_folder(folder))
        prefix = f"{cluster}_"
        own = {name.removeprefix(prefix): value for name, value in kwargs.items() if name.startswith(prefix)}
        self._job_parameters: dict[str, Any] = {}
        super().__init__(cluster, self._scheduler.executor(folder, **own))

    def is_taken(self, name: str, value: Any) -> bool:
        own = name.removeprefix(f"{self.cluster}_")
        if own == "tasks_per_node":
            raise UsageError(f"{name}: not a parameter of a supervised job; set workers_per_node")
        if own in _JOB_PARAMETERS and value is not None:
            self._job_parameters[_JOB_PARAMETERS[own]] = value
        return own in _JOB_PARAMETERS

    def submit_all(self, submissions: Sequence[DelayedSubmission]) -> list[Job[Any]]:
        specs = [self._spec(delayed) for delayed in submissions]
        given = self.executor.parameters
        jobs = []
        try:
            requests = []
            for spec in specs:
                self.executor.parameters = given
                self.executor.use(spec)
                self._check(spec)
                requests.append(self.executor.request())
            cluster_name = self.executor.cluster_name()
            for _, numbered in itertools.groupby(enumerate(specs), key=lambda each: requests[each[0]]):
                alike = [spec for _, spec in numbered]
                self.executor.parameters = given
                self.executor.use(alike[0])
                submitted = self.executor.launch(alike)
                for job, spec in zip(submitted, alike, strict=True):
                    _remember(job, spec, self.cluster, cluster_name)
                jobs += submitted
        finally:
            self.executor.parameters = given
        return jobs

    def _spec(self, delayed: DelayedSubmission) -> JobSpec:
        job = delayed.function
        gres = {"gres": self.executor.parameters["gres"]} if self.executor.parameters.get("gres") else {}
        if isinstance(job, JobSpec):
            return dataclasses.replace(job, slurm=gres | dict(job.slurm))
        if not isinstance(job, Torchrun) or delayed.kwargs:
            got = f"{delayed.kwargs}" if isinstance(job, Torchrun) else f"{job!r}"
            raise UsageError(
                f"submit: got {got}, expected Torchrun(script, *args) or a JobSpec; "
                "submitit.AutoExecutor runs plain functions"
            )
        mapping = self._job_parameters | job.mapping(*delayed.args)
        if gres and isinstance(mapping.get("slurm") or {}, Mapping):
            mapping["slurm"] = gres | (mapping.get("slurm") or {})
        auto = gpus.of_this_machine if self._scheduler.is_this_machine else gpus.not_here
        return JobSpec.from_mapping(mapping, Path.cwd(), f"Torchrun({job.script!r})", auto_gpus=auto)

    def _check(self, spec: JobSpec) -> None:
        """Raises UsageError for a job that cannot work, before anything is submitted."""
        check_modules(spec, os.environ)
        if spec.checkpoint and spec.checkpoint.shared:
            waits = self.executor.waits_for_others()
            _check_shared(spec.checkpoint.shared.path, spec.checkpoint.namespace, spec.name, waits=waits)
        if self._scheduler.is_this_machine and (remark := gpus.remark(spec.gpus_per_node, spec.workers_per_node)):
            _log.warning("%s", remark)
        self.executor.check(spec)


def _check_writable(folder: Path) -> None:
    """Writes a test file to the folder of all jobs. Permissions alone do not show read-only mounts and quotas."""
    try:
        make_folder(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{folder}: jobs cannot be kept here ({error.strerror}); choose another folder") from error


def _check_shared(path: str, namespace: str, name: str, *, waits: bool) -> None:
    """Check that the job may have its namespace in the shared tier. An uncertain state of another run refuses nothing,
    because the agents look again when the job starts.

    Args:
        path, namespace, name: those of the job.
        waits: whether the job is to start after others have ended.

    Raises:
        UsageError: it cannot be used, it belongs to a job of another name, or a running job has it.
    """
    from ckpt import CheckpointError, check_shared

    try:
        claim = check_shared(path, namespace)
    except CheckpointError as error:
        raise UsageError(str(error)) from error
    if claim is not None and (why := claim.why_not_for(dataclasses.replace(claim, name=name, script=""))) is not None:
        raise UsageError(f"checkpoint.namespace: {namespace} in {path} {why}")
    if claim is not None and not waits and (found := run_liveness.liveness(claim.run_id, os.environ)).is_running:
        raise UsageError(
            f"checkpoint.namespace: {namespace} is in use in the shared tier by {claim} ({found.words}); wait for its "
            "end, cancel it, or choose another namespace; on Slurm, --dependency=afterany:JOB queues this job behind it"
        )


def _remember(job: Job[Any], spec: JobSpec, cluster: str, slurm_cluster: str) -> None:
    remember(
        KnownJob(
            job_id=job.job_id,
            name=spec.name,
            cluster=cluster,
            folder=job.paths.folder,
            nodes=spec.nodes,
            spares=spec.spares,
            slurm_cluster=slurm_cluster,
        )
    )
