"""The end of the job: its outcome, the check that this supervisor still leads, and a requeue if the job continues."""

from __future__ import annotations

from collections.abc import Collection

from launcher.core import attempt, requests
from launcher.core import inputs as given_
from launcher.core.commands import EndJob, ProbeFolder, SetTimer
from launcher.core.frozen import replace
from launcher.core.outcomes import JobOutcome
from launcher.core.recovery import why_given_up
from launcher.core.state import Launch, RequeuePhase, Stage
from launcher.core.stop_reasons import StopReason
from launcher.core.turn import Turn

# reasons for outcomes that have no other
REASONS = {
    JobOutcome.CANCELLED: "ended from outside: cancelled, or out of time",
    JobOutcome.STOPPED: "stopped at a step boundary; the job goes on from there when it starts again",
}


def on_explained(turn: Turn, given: given_.TerminationExplained) -> None:
    """The meaning of a SIGTERM.

    A job that is being cancelled must not be requeued, because Slurm would start it again.
    """
    requests.on_explained(turn, given)
    if turn.state.stage is not Stage.CONFIRMING or turn.state.ending is None:
        return
    if given.why is StopReason.CANCEL:
        requests.cancel(turn)
    if requests.is_asked(turn.state.requests):
        finish_as_asked(turn)
    else:
        outcome, reason = turn.state.ending
        turn.record("stop_requested", reason=StopReason.REQUEUE, detail=reason)
        finish(turn, outcome, reason, wants_requeue=True)


def confirming(turn: Turn) -> None:
    if turn.state.requests.is_cancelled:
        finish(turn, JobOutcome.CANCELLED, REASONS[JobOutcome.CANCELLED])


def finish_as_asked(turn: Turn) -> None:
    asked = turn.state.requests
    outcome = JobOutcome(requests.outcome_of(asked))
    ours = outcome is JobOutcome.STOPPED and asked.stop in requests.OURS_TO_REQUEUE
    if ours and asked.stop == StopReason.TIME_LIMIT and (why := _why_given_up(turn)) is not None:
        finish(turn, JobOutcome.NO_PROGRESS, f"{why}; each start of the job ended by its time limit")
    else:
        fault = turn.state.fault if outcome is JobOutcome.HALTED else None  # the fault kept the ranks from saving
        finish(turn, outcome, fault.reason if fault else REASONS.get(outcome, ""), wants_requeue=ours)


def _why_given_up(turn: Turn) -> str | None:
    job = turn.state.job
    return why_given_up(turn.state.history.gains, job.limits, has_checkpoint=job.has_checkpoint)


def finish(turn: Turn, outcome: JobOutcome, reason: str, *, wants_requeue: bool = False) -> None:
    """Prepares the end. The result and the requeue need a folder that still names this supervisor as the leader."""
    turn.state = replace(turn.state, ending=(outcome, reason), wants_requeue=wants_requeue, blocked="", launch=Launch())
    turn.do(ProbeFolder(attempt=None))
    turn.enter(Stage.CLOSING, timeout_s=attempt.FOLDER_TIMEOUT_S)


def closing(turn: Turn) -> None:
    state = turn.state
    if turn.due(state.deadline_s) or (state.again_s is not None and requests.is_asked(state.requests)):
        close(turn)
    elif turn.due(state.again_s):
        turn.state = replace(turn.state, again_s=None)
        turn.do(ProbeFolder(attempt=None))


def close(turn: Turn) -> None:
    if not turn.state.wants_requeue:
        _end_job(turn)
        return
    turn.enter(Stage.REQUEUEING)
    if turn.state.requests.is_cancelled and turn.state.requeue is RequeuePhase.NONE:
        turn.state = replace(turn.state, ending=(JobOutcome.CANCELLED, REASONS[JobOutcome.CANCELLED]))
        _end_job(turn)
    else:
        requests.begin_requeue(turn)


def requeueing(turn: Turn) -> None:
    """Waits until the scheduler starts the job again. It then kills this one, so all remaining work must be short."""
    state = turn.state
    if state.requeue is RequeuePhase.DONE:
        _end_job(turn)
    elif state.requeue is RequeuePhase.REFUSED and state.ending is not None:
        _, reason = state.ending
        outcome = JobOutcome.INTERNAL if state.requests.stop else JobOutcome.TOO_FEW_NODES
        reason = f"{reason}; not requeued: {state.requeue_error}; submit the job again"
        turn.state = replace(turn.state, ending=(outcome, reason))
        _end_job(turn)


def give_up(turn: Turn, why: str) -> None:
    """Ends the job because this program is wrong, with the state for those who mend it."""
    state = turn.state
    phase = f", attempt {state.attempt.number} {state.attempt.phase.value}" if state.attempt is not None else ""
    where = f"stage {state.stage.value}{phase}, {state.requests}, {state.agents}"
    turn.record("problem", what=why, detail=where)
    turn.state = replace(
        turn.state,
        ending=(JobOutcome.INTERNAL, f"{why} in stage {state.stage.value}{phase}: a defect of Holdfast; report it"),
    )
    turn.state = replace(turn.state, wants_requeue=False)
    _end_job(turn)


def dismissals(outcome: JobOutcome, base: Collection[str], connected: Collection[str]) -> dict[str, bool]:
    """For each node, whether its runner removes the job's memory as it ends.

    A job that goes on has the nodes of its base again, with their memory. Those of boosters are not its own then.

    Args:
        outcome: of this start of the job.
        base: the nodes of the base.
        connected: the nodes whose runners are connected.
    """
    return {node: not goes_on(outcome) or node not in base for node in (*base, *connected)}


def goes_on(outcome: JobOutcome) -> bool:
    """Whether the job continues with its next start: it keeps its memory, and has no result yet."""
    return outcome is JobOutcome.STOPPED


def on_folder_removed(turn: Turn, given: given_.FolderRemoved) -> None:
    turn.state = replace(turn.state, ending=(JobOutcome.INTERNAL, given.reason), wants_requeue=False)
    _end_job(turn)


def _end_job(turn: Turn) -> None:
    outcome, reason = turn.state.ending or (JobOutcome.INTERNAL, "")
    if turn.state.timer_s is not None:
        turn.state = replace(turn.state, timer_s=None)
        turn.do(SetTimer(at_s=None))
    turn.do(EndJob(outcome=outcome, reason=reason, step=turn.state.step))
    turn.state = replace(turn.state, launch=Launch())
    turn.enter(Stage.ENDED)


def ended(turn: Turn) -> None:
    """Nothing follows."""
