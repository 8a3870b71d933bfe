"""The outcome of a submitted job, from the job's folder. submitit's pickle files are neither written nor read."""

from __future__ import annotations

import time
from typing import Any

from launcher.core.outcomes import JobOutcome
from launcher.errors import JobFailed
from launcher.history.outcome import Outcome
from launcher.job.jobfile import JobSpec
from launcher.submission.request import read_request
from launcher.submission.submitit_base import DelayedSubmission, JobBase, UncompletedJobError

_POLL_S = 0.5


def settle(name: str, outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of a job that is done.

    Raises:
        JobFailed: the job ended before it was done.
        SystemExit: the job has stopped and continues after a requeue. submitit writes no result then.
    """
    if outcome.name is JobOutcome.STOPPED:
        raise SystemExit(0)
    if outcome.exit_code:
        at_step = "" if outcome.step is None else f" at step {outcome.step}"
        because = f": {outcome.reason}" if outcome.reason else ""
        raise JobFailed(f"job {name}: {outcome.name}{at_step}{because}")
    return outcome.to_mapping()


class SupervisedJob(JobBase):
    """A job whose outcome is in its folder."""

    def done(self, force_check: bool = False) -> bool:
        """Whether the job has ended for good. A stopped job has not: it continues after its requeue."""
        return self._outcome() is not None or super().done(force_check)

    def submission(self) -> DelayedSubmission:
        """The submission, whose `function` is the JobSpec."""
        folder = self.paths.folder
        return DelayedSubmission(JobSpec.from_json(read_request(folder)))

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
