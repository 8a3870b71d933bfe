"""Requests from outside a running job: to stop at a step boundary, for now or for good, or to end without training on.

The time limit is also a request to stop.

The scheduler's warning (`sbatch --signal=B:USR2@90`) goes only to the batch script, and is lost with its host. It may
come a minute early. A job whose limit is shorter than the 90 s receives it at once (seen on 22.05). So the supervisor
also asks the scheduler for the time left.
"""

from __future__ import annotations

from launcher.core import boosters
from launcher.core.commands import AskTimeLeft, AskWhyTerminated, Requeue
from launcher.core.frozen import replace
from launcher.core.inputs import (
    CancelAsked,
    HaltAsked,
    Requeued,
    Terminated,
    TerminationExplained,
    TimeLeftAnswered,
    TimeWarned,
)
from launcher.core.outcomes import AttemptOutcome
from launcher.core.replay import History
from launcher.core.state import ElasticLimits, Requests, RequeuePhase, Sigterm, TimeLimit
from launcher.core.stop_reasons import StopReason
from launcher.core.turn import Turn

# after these Holdfast itself must start the job again
OURS_TO_REQUEUE = (StopReason.TIME_LIMIT, StopReason.PREEMPTED, StopReason.BATCH_SCRIPT_LOST)
# after these the job is in the queue again before it has ended
_STARTS_AGAIN = (StopReason.REQUEUE, StopReason.BATCH_SCRIPT_LOST)

# seconds in which ranks must reach a common step boundary
_STOP_TIMEOUT_S = {
    StopReason.TIME_LIMIT: 75.0,  # sbatch --signal=B:USR2@90 leaves 90 s
    StopReason.HALT: 600.0,  # not urgent, so a slow step has enough time
}
_DEFAULT_STOP_TIMEOUT_S = 25.0  # Slurm's KillWait, 30 s by default, starts with the SIGTERM that causes the stop
# Seconds in which ranks that have saved wait for the lower tiers. The step is safe in memory before. A slow tier must
# not use up the time for the stop. After a resize the next attempt continues to write the step.
_LOWER_S: dict[StopReason, float | None] = {StopReason.RESIZE: 0.0, StopReason.TIME_LIMIT: 50.0, StopReason.HALT: None}
_DEFAULT_LOWER_S = 15.0

MARGIN_S = 90.0  # before the time limit: to agree on a step, save it, and requeue the job
SHRINK_S = 180.0  # before that: to continue without boosters, and commit a step that does not need them
ASK_EVERY_S = 120.0  # the limit may be changed while the job runs
SHORT_S = 600.0  # with more time left, and in the first half of the job's time, a warning comes from a user


def is_asked(requests: Requests) -> bool:
    """Whether the job must stop or end."""
    return requests.is_cancelled or requests.stop not in (None, StopReason.RESIZE)


def is_stopping(requests: Requests) -> bool:
    """Whether the attempt must end, with or without the job."""
    return requests.is_cancelled or requests.stop is not None


def may_be_asked(requests: Requests) -> bool:
    """Whether the job must stop or end, or the meaning of a SIGTERM is not known yet."""
    return is_asked(requests) or requests.sigterm is not Sigterm.NONE


def outcome_of(requests: Requests) -> AttemptOutcome:
    """The outcome of an attempt that was asked to end.

    If the scheduler starts the job again in any case, the request to halt stays and ends the job at its next start.
    """
    if requests.is_cancelled:
        return AttemptOutcome.CANCELLED
    if requests.stop == StopReason.RESIZE:
        return AttemptOutcome.RESIZED
    is_halt = requests.is_halt and requests.stop not in _STARTS_AGAIN
    return AttemptOutcome.HALTED if is_halt else AttemptOutcome.STOPPED


def stop_deadline_s(requests: Requests, limits: ElasticLimits) -> float | None:
    """The deadline for all ranks to stop; None if no stop is requested."""
    if requests.stop is None:
        return None
    if requests.stop == StopReason.RESIZE:
        return requests.stop_s + limits.graceful_shutdown_timeout_s
    return requests.stop_s + _STOP_TIMEOUT_S.get(requests.stop, _DEFAULT_STOP_TIMEOUT_S)


def lower_s(stop: StopReason) -> float | None:
    """For how long ranks that stop for this reason wait for the lower tiers; None: until their own deadline."""
    return _LOWER_S.get(stop, _DEFAULT_LOWER_S)


def go_on(turn: Turn, history: History) -> None:
    """After a take-over: the requests to the former supervisor still hold."""
    running = history.running_attempt
    resize = StopReason.RESIZE if running is not None and running.is_resizing else None
    stop = history.stop or resize
    stop_s = turn.now_s if stop is not None else 0.0
    is_cancelled, cancelled_s = history.is_cancelled, turn.now_s if history.is_cancelled else 0.0
    turn.requests = replace(turn.requests, stop=stop, stop_s=stop_s, is_halt=history.is_halt)
    turn.requests = replace(turn.requests, is_cancelled=is_cancelled, cancelled_s=cancelled_s)
    turn.state = replace(turn.state, resize=replace(turn.state.resize, is_written=True))


def record_again(turn: Turn) -> None:
    """Records the requests again at a new start of the job, because they still hold."""
    asked = turn.state.requests
    reasons = (
        StopReason.CANCEL if asked.is_cancelled else None,
        StopReason.HALT if asked.is_halt else None,
        asked.stop,
    )
    for reason in dict.fromkeys(reasons):
        if reason not in (None, StopReason.RESIZE):
            turn.record("stop_requested", reason=reason)


def on_terminated(turn: Turn, given: Terminated) -> None:
    if given.node is not None and boosters.on_terminated(turn, given.node, given.why):
        return
    asked = turn.state.requests
    if asked.sigterm in (Sigterm.NONE, Sigterm.KNOWN) and not asked.is_cancelled:
        turn.requests = replace(
            turn.requests, sigterm=Sigterm.ASKED if asked.sigterm is Sigterm.NONE else Sigterm.AGAIN
        )
        turn.do(AskWhyTerminated())


def on_explained(turn: Turn, given: TerminationExplained) -> None:
    """The meaning of a SIGTERM. A later one only counts if it cancels the job, which always wins."""
    sigterm = turn.state.requests.sigterm
    if sigterm not in (Sigterm.ASKED, Sigterm.AGAIN):
        return
    turn.requests = replace(turn.requests, sigterm=Sigterm.KNOWN)
    if given.why is StopReason.CANCEL:
        cancel(turn)
    elif sigterm is Sigterm.ASKED:
        ask_stop(turn, given.why)


def on_cancel(turn: Turn, given: CancelAsked) -> None:
    cancel(turn)


def on_halt(turn: Turn, given: HaltAsked) -> None:
    turn.requests = replace(turn.requests, is_halt_pending=True, halt_step=given.at_step, halt_s=given.at_s)


def cancel(turn: Turn) -> None:
    if not turn.state.requests.is_cancelled:
        turn.requests = replace(turn.requests, is_cancelled=True, cancelled_s=turn.now_s)
        turn.record("stop_requested", reason=StopReason.CANCEL)


def ask_stop(turn: Turn, reason: StopReason) -> None:
    """Requests a stop. A halt is not urgent, so every other reason replaces it, with a deadline of its own.

    After a stop of the job no attempt of another size begins, so every reason replaces a resize.
    """
    requests = turn.state.requests
    if requests.stop in (None, StopReason.RESIZE) or (requests.stop == StopReason.HALT and reason != StopReason.HALT):
        is_halt = requests.is_halt or reason == StopReason.HALT
        turn.requests = replace(turn.requests, stop=reason, stop_s=turn.now_s, is_halt=is_halt)
        turn.record("stop_requested", reason=reason)
        # The requeue begins while ranks stop and save, because Slurm is already killing what is left of the job.
        if reason == StopReason.BATCH_SCRIPT_LOST and not requests.is_cancelled:
            begin_requeue(turn)
    elif reason == StopReason.HALT:
        turn.requests = replace(turn.requests, is_halt=True)


def begin_requeue(turn: Turn) -> None:
    """Asks the scheduler to start the job again, unless that was already asked."""
    if turn.state.requeue in (RequeuePhase.NONE, RequeuePhase.REFUSED):
        turn.state = replace(turn.state, requeue=RequeuePhase.ASKED)
        turn.take_all_back("all runners were lost at once: the next start may have their nodes")
        out = sorted(turn.state.history.out.items())
        turn.do(Requeue(exclude=tuple(node for node, why in out if not why.is_drained)))  # nor does Slurm give those


def on_requeued(turn: Turn, given: Requeued) -> None:
    if given.lacks_nodes and _take_lost_back(turn):
        turn.state = replace(turn.state, requeue=RequeuePhase.NONE)
        begin_requeue(turn)
        return
    refused = given.error is not None
    turn.state = replace(
        turn.state, requeue=RequeuePhase.REFUSED if refused else RequeuePhase.DONE, requeue_error=given.error or ""
    )


def _take_lost_back(turn: Turn) -> bool:
    """Lets the next start have the nodes about which only their loss is known. False if there is none."""
    lost = [node for node, why in sorted(turn.state.history.out.items()) if why.is_lost]
    if not lost:
        return False
    turn.record("problem", what="too few other nodes are left: the next start may have the lost ones")
    for node in lost:
        turn.take_back(node)
    return True


def advance(turn: Turn) -> None:
    """Requests a stop that has become due, and asks the scheduler for the time left."""
    requests, limit = turn.state.requests, turn.state.time_limit
    if requests.is_halt_pending and _is_halt_due(turn):
        turn.requests = replace(turn.requests, is_halt_pending=False)
        ask_stop(turn, StopReason.HALT)
    if turn.due(limit.ask_s):
        turn.state = replace(turn.state, time_limit=replace(limit, ask_s=None))
        turn.do(AskTimeLeft())


def on_time_warned(turn: Turn, given: TimeWarned) -> None:
    limit = turn.state.time_limit
    if limit.is_near:
        return
    if limit.ask_s is None:  # a question has not been answered yet
        turn.state = replace(turn.state, time_limit=replace(limit, is_warned=True))
    else:
        turn.state = replace(turn.state, time_limit=replace(limit, is_warned=True, ask_s=turn.now_s))


def on_time_left(turn: Turn, given: TimeLeftAnswered) -> None:
    """Requests a stop if only MARGIN_S of the job's time are left, or after a warning of the limit.

    If the job's whole time is short, half of it is used. Otherwise the job would be requeued for ever without a step.
    """
    limit = turn.state.time_limit
    if limit.is_near:
        return
    left_s, wait_s = given.left_s, ASK_EVERY_S
    if left_s is None:
        is_near = limit.is_warned
    else:
        half_s = limit.half_s
        if half_s is None:
            used_s = turn.now_s - limit.begun_s  # an administrator may have changed the limit
            half_s = left_s if turn.state.job.is_take_over else (used_s + left_s) / 2
        limit = replace(limit, half_s=half_s)
        margin_s = min(MARGIN_S, half_s)
        if limit.is_warned:
            margin_s = half_s if left_s <= SHORT_S else left_s
        is_near = left_s <= margin_s
        wait_s = min(wait_s, left_s - margin_s)
        if turn.state.job.most_boosters:
            limit = replace(limit, is_ending=left_s <= margin_s + SHRINK_S)
            wait_s = wait_s if limit.is_ending else min(wait_s, left_s - margin_s - SHRINK_S)
    _watch(turn, limit, is_near=is_near, wait_s=wait_s)


def _watch(turn: Turn, limit: TimeLimit, *, is_near: bool, wait_s: float) -> None:
    if is_near:
        turn.state = replace(turn.state, time_limit=replace(limit, ask_s=None, is_near=True))
        ask_stop(turn, StopReason.TIME_LIMIT)
    else:
        turn.state = replace(turn.state, time_limit=replace(limit, ask_s=turn.now_s + wait_s))


def _is_halt_due(turn: Turn) -> bool:
    requests = turn.state.requests
    return (turn.state.step or 0) >= requests.halt_step and turn.due(requests.halt_s)
