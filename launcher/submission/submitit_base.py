"""submitit's classes with public hooks. No other module uses submitit's private names.

A submission that is not submitit's own pickle needs more than the names in submitit's `__init__`: how an executor
passes parameters on, how a job finds its result, how a watcher keeps states. They may change with any release, so
pyproject.toml bounds the version. 1.5.4 is tried; older ones import pkg_resources, which setuptools 82 has removed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import submitit
from submitit.core.utils import DelayedSubmission as DelayedSubmission
from submitit.core.utils import JobPaths as JobPaths
from submitit.core.utils import UncompletedJobError as UncompletedJobError
from submitit.slurm.slurm import SlurmInfoWatcher


class ExecutorBase(submitit.AutoExecutor):
    """submitit's AutoExecutor for given executors, instead of those that are registered with submitit.

    Args:
        cluster: the executor's name, the prefix of its parameters.
        executor: submits to that cluster.
    """

    def __init__(self, cluster: str, executor: Any) -> None:
        self.cluster = cluster
        self._executor = executor
        self._deprecated_args: dict[str, str] = {}
        submitit.Executor.__init__(self, executor.folder, executor.parameters)

    @property
    def executor(self) -> Any:
        return self._executor

    def is_taken(self, name: str, value: Any) -> bool:
        """Take a parameter that submitit does not know. False: it is submitit's."""
        raise NotImplementedError

    def submit_all(self, submissions: Sequence[DelayedSubmission]) -> list[submitit.Job[Any]]:
        """Submit one job for each submission."""
        raise NotImplementedError

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        left = {name: value for name, value in kwargs.items() if not self.is_taken(name, value)}
        if left:
            super()._internal_update_parameters(**left)

    def _internal_process_submissions(self, submissions: Sequence[DelayedSubmission]) -> list[submitit.Job[Any]]:
        return self.submit_all(submissions)


class SlurmExecutorBase(submitit.SlurmExecutor):
    """submitit's executor for Slurm."""

    def throttle(self) -> None:
        """Wait until submitit's pause between two submissions is over."""
        self._throttle()
        self._last_job_submitted = time.time()


class JobBase(submitit.Job[Any]):
    """submitit's job, whose result is not in a pickle."""

    def outcome_and_result(self, timeout_s: float) -> tuple[str, Any]:
        """("success", the result) or ("error", the reason) of a job that has ended.

        Args:
            timeout_s: time for a shared file system to show the result.

        Raises:
            UncompletedJobError: the job has left no result.
        """
        raise NotImplementedError

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        return self.outcome_and_result(self._results_timeout_s)


class LocalJobBase(submitit.LocalJob[Any]):
    """submitit's job on this machine."""

    @property
    def is_own_process(self) -> bool:
        """Whether this Python process has started the job."""
        return self._process is not None


class WatcherBase(SlurmInfoWatcher):
    """submitit's cache of the states of jobs, which asks for several jobs at once and seldom."""

    def states(self, job_ids: Sequence[str]) -> Mapping[str, tuple[str, str]]:
        """State and nodes of each job; without those of which nothing is known."""
        raise NotImplementedError

    def update(self) -> None:
        job_ids = sorted(self._registered - self._finished)
        if not job_ids:
            return
        self._num_calls += 1
        self._last_status_check = time.time()
        for job_id, (state, nodes) in self.states(job_ids).items():
            self._info_dict[job_id] = {"JobID": job_id, "State": state, "NodeList": nodes}
        self._finished.update(job_id for job_id in job_ids if self.is_done(job_id, mode="cache"))
