"""decide(): passes each input to the module that handles it, then advances the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from launcher.core import (
    agent_world,
    attempt,
    attempt_reports,
    boosters,
    departure,
    ending,
    launch,
    nodes,
    requests,
    resize,
    stages,
    stragglers,
)
from launcher.core import inputs as given_
from launcher.core.commands import (
    Command,
    Purpose,
    SetTimer,
)
from launcher.core.frozen import replace
from launcher.core.gains import Event
from launcher.core.hang import Hang
from launcher.core.inputs import Input
from launcher.core.liveness import PAUSE_S
from launcher.core.members import Member, Members
from launcher.core.replay import History, replay
from launcher.core.state import AttemptPhase, JobFacts, Stage, State, TimeLimit
from launcher.core.turn import Turn

MOST_PASSES = 100  # of one decision, which needs about five


def begin(job: JobFacts, past: Iterable[Event], now_s: float) -> tuple[State, tuple[Command, ...]]:
    """The first decision of a supervisor.

    Args:
        job: the constant facts of the job.
        past: the events of the job so far, oldest first, including that of a take-over.
        now_s: seconds of the driver's clock.
    """
    return begin_with(job, replay(past, History(has_checkpoint=job.has_checkpoint)), now_s)


def begin_with(job: JobFacts, history: History, now_s: float) -> tuple[State, tuple[Command, ...]]:
    """The same, where the events are folded already."""
    hang = Hang(timeout_s=job.limits.hang_timeout_s, has_checkpoint=job.has_checkpoint)
    members = Members.joining(job.nodes, job.allocations)
    known = boosters.known(history, job) if job.is_take_over else ()
    for booster in known:
        for node in booster.nodes:
            members = members.add(node, Member(allocation=booster.allocation))
    state = State(job=job, history=history, members=members, boosters=known, hang=hang, step=history.finished_step)
    turn = Turn(state, now_s)
    turn.state = replace(turn.state, time_limit=TimeLimit(begun_s=now_s, ask_s=now_s))
    turn.state = replace(
        turn.state, positions=tuple(node for node in history.positions if node in members)
    )  # they may have steps in memory
    turn.state = replace(
        turn.state, holders=tuple(node for node in history.holders if node in members) if job.is_take_over else ()
    )
    candidates = (*job.nodes, *boosters.nodes(state))
    runners = tuple(node for node in candidates if node in history.runners) if job.is_take_over else ()
    if job.is_take_over:
        requests.go_on(turn, history)
    if runners or (job.is_take_over and history.is_done):
        stages.take_over(turn, runners)
    else:
        stages.start(turn)
    return _finished(turn)


def decide(state: State, given: Input, now_s: float) -> tuple[State, tuple[Command, ...]]:
    """Handles one input. Returns the new state, and the commands for the driver.

    Args:
        state: the state after the previous decision.
        given: the input.
        now_s: seconds of the driver's clock; never less than before.
    """
    if state.stage is Stage.ENDED:
        return state, ()
    turn = Turn(state, now_s)
    if state.timer_s is not None and now_s - state.timer_s > PAUSE_S:  # what came meanwhile is not read yet
        nodes.on_stood_still(turn, given_.StoodStill(seconds=now_s - state.timer_s))
    number, node = getattr(given, "attempt", None), getattr(given, "node", None)
    if node is not None and node not in state.members and not isinstance(given, given_.NodeJoined):
        pass  # its runner has been sent away
    elif isinstance(given, given_.NodeJoined) or number is None:
        _TAKE[type(given)](turn, given)
    elif isinstance(given, given_.WorkersKilled) and nodes.has_left(turn, given):
        pass
    elif state.attempt is not None and state.attempt.number == number and state.attempt.is_running:
        _TAKE[type(given)](turn, given)
    if turn.state is state and not turn.commands and (state.timer_s is None or now_s < state.timer_s):
        return state, ()  # nothing is due; the timer is set for the next deadline
    return _finished(turn)


def _finished(turn: Turn) -> tuple[State, tuple[Command, ...]]:
    """Advances the job until nothing changes. The timer is set for the earliest time that the last pass waits for."""
    before, passes = None, 0
    while turn.state is not before and turn.state.stage is not Stage.ENDED:
        before, turn.next_s, passes = turn.state, None, passes + 1
        if passes > MOST_PASSES:
            ending.give_up(turn, f"no end of a decision after {MOST_PASSES} passes")
            break
        requests.advance(turn)
        launch.give_up_late(turn)
        boosters.advance(turn)
        resize.advance(turn)
        departure.advance(turn)
        _STAGES[turn.state.stage](turn)
        nodes.call_the_roll(turn)
    if turn.state.stage is Stage.ENDED:
        return turn.state, tuple(turn.commands)
    if turn.next_s != turn.state.timer_s:
        turn.do(SetTimer(at_s=turn.next_s))
        turn.state = replace(turn.state, timer_s=turn.next_s)
    return turn.state, tuple(turn.commands)


def _on_unusable(turn: Turn, given: given_.UnusableAnswered) -> None:
    state = turn.state
    if given.purpose is Purpose.RETURN:
        nodes.on_return_answered(turn, given)
    elif given.purpose in (Purpose.START, Purpose.AGAIN):
        if state.stage is Stage.ASKING:
            for node, reason in given.unusable.items():
                turn.put_out(node, reason)
            launch.begin(turn)
            stages.probe(turn)
    elif given.purpose is Purpose.SCHEDULER:
        stages.on_scheduler_answered(turn, given)
    elif state.stage is Stage.ATTEMPT and agent_world.concerns(turn, given.asked):
        if given.purpose is Purpose.AGENTS_FAILED:
            attempt.on_failed_agents_explained(turn, given)
        elif turn.attempt.phase in (AttemptPhase.STARTING, AttemptPhase.TRAINING, AttemptPhase.JUDGING):
            agent_world.take_late(turn, dict(given.unusable), given.asked)


_STAGES: dict[Stage, Callable[[Turn], None]] = {
    Stage.ASKING: stages.asking,
    Stage.PROBING: stages.probing,
    Stage.GATHERING: stages.gathering,
    Stage.ATTEMPT: stages.attempting,
    Stage.BACKING_OFF: stages.backing_off,
    Stage.DECIDING: stages.deciding,
    Stage.SCHEDULER: stages.scheduler,
    Stage.CONFIRMING: ending.confirming,
    Stage.CLOSING: ending.closing,
    Stage.REQUEUEING: ending.requeueing,
    Stage.ENDED: ending.ended,
}


def _on_events_written(turn: Turn, given: given_.EventsWritten) -> None:
    turn.state = replace(turn.state, unsettled=max(0, turn.state.unsettled - 1))
    if turn.state.unsettled:  # it answers an earlier Settle
        return
    resize.on_written(turn, given)
    boosters.on_written(turn, given)
    attempt.on_events_written(turn, given)


def _on_timer(turn: Turn, given: given_.TimerFired) -> None:
    turn.state = replace(turn.state, timer_s=None)


_TAKE: dict[type, Callable[[Turn, Any], None]] = {
    given_.TimerFired: _on_timer,
    given_.NodeJoined: nodes.on_node_joined,
    given_.NodeWarm: nodes.on_node_warm,
    given_.NodeLost: nodes.on_node_lost,
    given_.NodeBroken: nodes.on_node_broken,
    given_.NodesDrained: departure.on_drained,
    given_.NodeIncident: departure.on_incident,
    given_.IsolationChanged: nodes.on_isolation,
    given_.StoodStill: nodes.on_stood_still,
    given_.LaunchEnded: launch.on_ended,
    given_.WorkersStarted: attempt_reports.on_workers_started,
    given_.WorkersEnded: attempt_reports.on_workers_ended,
    given_.WorkersKilled: attempt_reports.on_workers_killed,
    given_.FaultReported: attempt_reports.on_fault_reported,
    given_.Lingering: attempt_reports.on_lingering,
    given_.Progress: attempt_reports.on_progress,
    given_.StragglerSeen: stragglers.on_seen,
    given_.StragglerGone: stragglers.on_gone,
    given_.FirstStep: attempt_reports.on_first_step,
    given_.RestoreRefused: attempt_reports.on_restore_refused,
    given_.StopHandled: attempt_reports.on_stop_handled,
    given_.StacksTaken: attempt_reports.on_stacks_taken,
    given_.Reported: attempt_reports.on_reported,
    given_.Restored: agent_world.on_restored,
    given_.AgentsRejoined: agent_world.on_rejoined,
    given_.Committed: attempt_reports.on_committed,
    given_.AgentLost: agent_world.on_lost,
    given_.AgentEnded: agent_world.on_agent_ended,
    given_.AgentsEnded: agent_world.on_ended,
    given_.UnusableAnswered: _on_unusable,
    given_.TerminationExplained: ending.on_explained,
    given_.TimeLeftAnswered: requests.on_time_left,
    given_.FolderProbed: stages.on_folder_probed,
    given_.EventsWritten: _on_events_written,
    given_.OwnCheckpointsSeen: attempt_reports.on_own_checkpoints,
    given_.Requeued: requests.on_requeued,
    given_.AllocationAsked: boosters.on_asked,
    given_.AllocationsSeen: boosters.on_seen,
    given_.ScaleAsked: resize.on_scale,
    given_.Terminated: requests.on_terminated,
    given_.TimeWarned: requests.on_time_warned,
    given_.HaltAsked: requests.on_halt,
    given_.CancelAsked: requests.on_cancel,
    given_.FolderRemoved: ending.on_folder_removed,
}
