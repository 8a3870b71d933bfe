"""Every wait has its deadline: the timer is set for the moment at which the job no longer waits for what it waits for.

A bound is what the documentation promises for a stage of the job, or a phase of its attempt. A job that only waits for
an answer which always comes has none.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.core.attempt import (
    FOLDER_TIMEOUT_S,
    PREDECESSOR_S,
    RETURN_S,
    SECONDARY_CAUSE_WINDOW_S,
    STACKS_TIMEOUT_S,
    START_TIMEOUT_S,
)
from launcher.core.boosters import LATE_S
from launcher.core.hang import FLOOR_S, REPEAT_FACTOR, START_S, STEPS_FACTOR
from launcher.core.recovery import MAX_DELAY_S
from launcher.core.stages import NODE_START_TIMEOUT_S, SCHEDULER_TIMEOUT_S, TRAINED_GRACE_S
from launcher.core.state import AgentPhase, Attempt, AttemptPhase, BoosterPhase, Sigterm, Stage, State
from launcher.core.stop_reasons import StopReason
from launcher.core.teardown import AGENT_CANCEL_S, AGENT_FLUSH_S, AGENT_STOP_S, KILL_CONFIRM_S
from simulation.decided import AT_WORK
from simulation.violation import Violation

_STAGE_S: dict[Stage, float] = {
    Stage.PROBING: FOLDER_TIMEOUT_S,
    Stage.SCHEDULER: SCHEDULER_TIMEOUT_S,
    Stage.BACKING_OFF: MAX_DELAY_S,
    Stage.CLOSING: FOLDER_TIMEOUT_S,
}
_PHASE_S: dict[AttemptPhase, float] = {
    AttemptPhase.RECORDING: FOLDER_TIMEOUT_S,
    AttemptPhase.STARTING: START_TIMEOUT_S,
    AttemptPhase.JUDGING: STACKS_TIMEOUT_S,
    AttemptPhase.FINDING_CAUSE: SECONDARY_CAUSE_WINDOW_S,
}
_STOP_S: dict[str, float] = {StopReason.HALT: 600.0}
_MOST_STOP_S = 75.0  # any other stop: the time limit leaves 90 s
_GROWN_S = 0.001  # what a sum of times may differ by


def check_waits(before: State, after: State, now_s: float, *, is_acting: bool) -> None:
    """Checks the timer after a decision.

    Args:
        before, after: the states.
        now_s: the time of the decision.
        is_acting: whether it gives commands.

    Raises:
        Violation: a deadline is missed, or is in the past.
    """
    if not is_acting and after.attempt is before.attempt and after.stage is before.stage:
        return
    if after.stage is Stage.ENDED:
        return
    timer_s = after.timer_s
    for what, latest_s in _latest(after):
        if latest_s is None or timer_s is None or timer_s > latest_s + _GROWN_S:
            raise Violation("every wait has its deadline", f"{what} ends at {latest_s}, and the timer is at {timer_s}")


def _latest(state: State) -> Iterator[tuple[str, float | None]]:
    """What the job waits for, and until when at most."""
    stage = state.stage
    if stage is Stage.ATTEMPT:
        if state.attempt is not None:
            yield from _of_attempt(state, state.attempt)
        return
    if stage in _STAGE_S and state.deadline_s is None and state.again_s is None:
        yield stage.value, state.stage_s + _STAGE_S[stage]
    members = state.members
    is_awaited = members.joining_count and members.usable + members.joining_count >= state.job.sizes[-1]
    is_explained = state.requests.sigterm is not Sigterm.ASKED  # else no attempt begins, however long nodes are there
    if stage is Stage.GATHERING and is_awaited and is_explained:
        if state.full_s is None:
            yield "the wait for nodes", state.stage_s + NODE_START_TIMEOUT_S
        else:
            yield "the wait for more nodes than are needed", state.full_s + TRAINED_GRACE_S


def _of_attempt(state: State, attempt: Attempt) -> Iterator[tuple[str, float | None]]:
    phase, agents = attempt.phase, state.agents
    if phase in _PHASE_S:
        yield phase.value, attempt.phase_s + _PHASE_S[phase]
    elif phase is AttemptPhase.RETURNING and not state.is_isolated:
        yield "the return of the runners", attempt.phase_s + RETURN_S
        if attempt.others_s is not None:
            yield "the return of the runner beside the supervisor that is gone", attempt.others_s + PREDECESSOR_S
    elif phase is AttemptPhase.RELEASING:
        until_s = attempt.phase_s + (AGENT_FLUSH_S if attempt.is_last else AGENT_STOP_S)
        asked = state.requests
        yield phase.value, min(until_s, asked.cancelled_s + AGENT_CANCEL_S) if asked.is_cancelled else until_s
        if agents.has_launcher and all(node in agents.gone for node in attempt.nodes):
            yield "the launcher of agents that have ended", agents.until_s
    elif phase is AttemptPhase.KILLING and not state.is_isolated and state.stood_still_s is None:
        yield phase.value, max(attempt.phase_s, attempt.lingering_s or 0.0) + KILL_CONFIRM_S
    if agents.phase is AgentPhase.IN_DOUBT:
        yield "the doubt about agents", agents.until_s
    if phase not in AT_WORK or attempt.is_decisive:
        return
    if agents.phase is AgentPhase.WAITING:
        yield "the replacement of agents", agents.until_s
    stop = state.requests.stop
    if stop is not None and (stop != StopReason.RESIZE or state.resize.is_written):
        grace_s = (
            state.job.elastic.graceful_shutdown_timeout_s
            if stop == StopReason.RESIZE
            else _STOP_S.get(stop, _MOST_STOP_S)
        )
        yield "the stop of all ranks", state.requests.stop_s + grace_s
    elif phase is AttemptPhase.TRAINING and not state.is_isolated:
        yield from _of_progress(state)
    for booster in state.boosters:
        is_there = booster.phase is BoosterPhase.RUNNING and booster.running_s is not None
        if is_there and len(booster.nodes) < state.job.booster_nodes and booster.running_s is not None:
            yield "the wait for a booster's runners", booster.running_s + LATE_S


def _of_progress(state: State) -> Iterator[tuple[str, float]]:
    """The next step, where the script tells its steps."""
    hang, timeout_s = state.hang, state.job.limits.hang_timeout_s
    if timeout_s == 0 or not state.job.has_checkpoint or hang.is_over:
        return
    if hang.step is None:
        learned_s = STEPS_FACTOR * state.history.longest_start_s
        yield "the first step", max(hang.step_s, hang.active_s) + max(START_S, learned_s, timeout_s or 0.0)
    elif timeout_s is not None:
        yield "the next step", max(hang.step_s, hang.section_s) + timeout_s
    else:
        allowed_s = max(FLOOR_S, STEPS_FACTOR * hang.longest_s) * REPEAT_FACTOR**state.history.hangs
        yield "the next step", max(hang.step_s, hang.section_s) + allowed_s
