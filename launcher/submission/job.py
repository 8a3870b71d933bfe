"""The job that `Executor.submit` returns: submitit's, and what the verbs of `holdfast` do.

submitit's pickle files are neither written nor read.
"""

from __future__ import annotations

import time
from typing import Any

from launcher.core.outcomes import JobOutcome
from launcher.errors import JobFailed, UsageError
from launcher.history.outcome import Outcome
from launcher.history.status import JobStatus
from launcher.job.jobfile import JobSpec
from launcher.job.registry import KnownJob, find_job
from launcher.submission.job_control import scale_job, status_now, stop_job
from launcher.submission.logs import Selection, text_of
from launcher.submission.outcome import settle
from launcher.submission.request import read_request
from launcher.submission.submitit_base import DelayedSubmission, JobBase, UncompletedJobError

_POLL_S = 0.5


class SupervisedJob(JobBase):
    """A job whose outcome is in its folder. status(), logs(), stop() and scale() do what the verbs of that name do.

    Each scheduler has a subclass, with submitit's `state`, `done` and `cancel` by its own queue.
    """

    def done(self, force_check: bool = False) -> bool:
        """Whether the job has ended for good. A stopped job has not: it continues after its requeue."""
        return self._outcome() is not None or super().done(force_check)

    def submission(self) -> DelayedSubmission:
        """The submission, whose `function` is the JobSpec."""
        folder = self.paths.folder
        return DelayedSubmission(JobSpec.from_json(read_request(folder)))

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

    def _outcome(self) -> Outcome | None:
        outcome = Outcome.read(self.paths.folder)
        return None if outcome is None or outcome.name is JobOutcome.STOPPED else outcome

    def outcome_and_result(self, timeout_s: float) -> tuple[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        while (outcome := self._outcome()) is None:
            if time.monotonic() > deadline_s:
                log = self.stderr() or super().stdout() or ""
                raise UncompletedJobError(
                    f"Job {self.job_id}: no result in {self.paths.folder} (state: {self.state}). Its log ends with:\n"
                    + "\n".join(log.splitlines()[-40:])
                )
            time.sleep(_POLL_S)
        try:
            return "success", settle(str(read_request(self.paths.folder)["name"]), outcome)
        except JobFailed as error:
            return "error", str(error)

    def _known(self) -> KnownJob:
        return find_job(str(self.paths.folder))
