"""The job that `Executor.submit` returns: submitit's, and what the verbs of `holdfast` do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.errors import UsageError
from launcher.history.status import JobStatus
from launcher.job.registry import KnownJob, find_job
from launcher.submission.job_control import scale_job, status_now, stop_job
from launcher.submission.local import SupervisedLocalJob
from launcher.submission.logs import Selection, text_of
from launcher.submission.slurm import SupervisedSlurmJob

if TYPE_CHECKING:
    from launcher.submission.submitit_base import JobPaths


class _Verbs:
    """status(), logs(), stop() and scale() do what the verbs of that name do.

    submitit gives a job of a batch its class later. Python allows that only if submitit's class is the first base.
    """

    if TYPE_CHECKING:

        @property
        def paths(self) -> JobPaths: ...

    def status(self) -> JobStatus:
        """The job's state, nodes, steps, ETTR and last events, as `holdfast status JOB --json` prints them."""
        return status_now(self._known())

    def logs(
        self,
        rank: int | None = 0,
        *,
        node: str | None = None,
        attempt: int | None = None,
        supervisor: bool = False,
        lines: int | None = None,
    ) -> str:
        """What the job's workers have printed, as one text.

        Args:
            rank: the worker; None for all, each line with its rank in front.
            node: instead of a rank, all workers of this node, and its runner.
            attempt: number of the attempt; None for all, one after the other.
            supervisor: the supervisor's log instead.
            lines: number of last lines of each rank; None for all lines.

        Raises:
            UsageError: the job has no such attempt, node or rank, or no log yet.
        """
        by_rank = {"all_ranks": rank is None, "rank": rank} if node is None else {"node": node}
        selection = Selection(**by_rank, attempt=attempt, supervisor=supervisor)
        return text_of(self.paths.folder, selection, lines)

    def stdout(self) -> str | None:
        """What the script's rank 0 has printed in all attempts; None before it has started."""
        try:
            return self.logs()
        except UsageError:
            return None

    def stop(self, at_step: int | None = None, after_s: float | None = None) -> str:
        """Have all ranks save at one step, then end the job for good.

        Args:
            at_step: stop at this step or later.
            after_s: stop after this time or later.

        Returns:
            What will happen, in words.

        Raises:
            UsageError: as `launcher.submission.job_control.stop_job`.
        """
        return stop_job(self._known(), at_step, None if after_s is None else time.time() + after_s)

    def scale(self, nodes: int | None) -> str:
        """Have an elastic job train on another number of nodes, as soon as it has that many.

        Args:
            nodes: one of the sizes in its job file; None: as many as the job file allows.

        Returns:
            What will happen, in words.

        Raises:
            UsageError: as `launcher.submission.job_control.scale_job`.
        """
        return scale_job(self._known(), nodes)

    def _known(self) -> KnownJob:
        return find_job(str(self.paths.folder))


class LocalJob(SupervisedLocalJob, _Verbs):
    """A job on the local cluster."""

    stdout = _Verbs.stdout


class SlurmJob(SupervisedSlurmJob, _Verbs):
    """A job in Slurm."""

    stdout = _Verbs.stdout
