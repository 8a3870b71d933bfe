"""What each decision of one supervisor must keep to: its state after the input, and the commands that it gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from launcher.core.attempt import SECONDARY_CAUSE_WINDOW_S
from launcher.core.commands import (
    AskAllocation,
    AskUnusable,
    Command,
    Dismiss,
    EndAllocation,
    KillAgents,
    ProbeFolder,
    Purpose,
    Record,
    ReleaseRunners,
    Settle,
    StartRunners,
)
from launcher.core.faults import LOSSES_S, FaultKind
from launcher.core.inputs import (
    AllocationAsked,
    Committed,
    EventsWritten,
    FirstStep,
    FolderProbed,
    FolderRemoved,
    LaunchEnded,
    NodeJoined,
    Progress,
    UnusableAnswered,
    WorkersEnded,
    WorkersKilled,
)
from launcher.core.members import Phase
from launcher.core.requests import is_asked
from launcher.core.state import AgentPhase, AttemptPhase, Booster, BoosterPhase, Sigterm, Stage, State
from launcher.diagnosis import find_cause
from simulation.choice_rules import check_choice
from simulation.command_rules import check_commands
from simulation.input_rules import check_input
from simulation.violation import Violation
from simulation.waits import check_waits

_TELLS_STEP = (Committed, FirstStep, Progress, WorkersEnded, WorkersKilled)
_STRANGER = "which this job has not asked for"
_NOT_LEAVING = (Phase.READY, Phase.TRAINING, Phase.RETURNING)
_AWAITS = {AskUnusable: Stage.ASKING, ProbeFolder: Stage.PROBING}
_AT_END = (Stage.CONFIRMING, Stage.CLOSING, Stage.REQUEUEING, Stage.ENDED)


class DecisionRules:
    """Follows the decisions of one supervisor.

    Args:
        todo: the commands of its first decision.
    """

    __slots__ = ("_asked", "_has_launcher", "_unsettled", "_unstarted", "_usable", "_usable_s")

    def __init__(self, todo: Iterable[Command]) -> None:
        self._asked = sum(type(command) is AskAllocation for command in todo)  # boosters, and no answer yet
        self._has_launcher = any(type(command) is StartRunners for command in todo)
        self._unsettled = sum(type(command) is Settle for command in todo)
        self._unstarted: set[str] = set()  # nodes on which no process could be started
        self._usable = 0  # most usable nodes since the last attempt began
        self._usable_s = 0.0  # since when

    def check(self, before: State, message: Any, state: State, todo: Iterable[Command], now_s: float) -> None:
        """Takes a decision.

        Raises:
            Violation: it is wrong.
        """
        todo = tuple(todo)
        if state.members.usable > self._usable:
            self._usable, self._usable_s = state.members.usable, now_s
        self._check_launches(message, state, todo)
        self._check_reports(before, message, state)
        if before.stage is not Stage.ENDED:
            self._check_unsettled(message, state, todo)
        if state.boosters or before.boosters or self._asked or todo:
            self._check_boosters(before, message, state, todo)
        check_decision(before, message, state, todo, now_s)
        for command in todo:
            if type(command) is Record:
                self._check_record(message, state, todo, command, now_s)

    def _check_record(
        self, message: Any, state: State, todo: tuple[Command, ...], command: Record, now_s: float
    ) -> None:
        if type(message) is NodeJoined and _STRANGER in command.fields.get("what", ""):
            of_base = not message.allocation or message.allocation in state.job.allocations.values()
            if not of_base and EndAllocation(allocation=message.allocation) not in todo:
                raise Violation("a booster that is not needed is ended", f"{message.allocation} is not")
        elif command.event == "attempt_start":
            self._usable = state.members.usable
            if self._has_launcher or state.launch.is_under_way:
                raise Violation("the runners' launcher is released before an attempt", f"{state.launch}")
        elif (
            command.event == "fault" and command.fields["kind"] == FaultKind.START_TIMEOUT and state.attempt is not None
        ):
            _check_late_start(command, state)
        elif command.event == "problem" and "nothing is saved until the next attempt" in command.fields["what"]:
            if KillAgents() not in todo:
                raise Violation("agents that are given up are ended", f"{todo}")
        elif command.event == "resize" and command.fields["reason"] == "more nodes are there":
            settled_s = now_s - self._usable_s
            if settled_s < state.job.elastic.scaling_timeout_s:
                raise Violation("a larger attempt waits for more nodes", f"the last came {settled_s:.1f} s ago")

    def _check_unsettled(self, message: Any, state: State, todo: tuple[Command, ...]) -> None:
        """An answer is awaited for each request to write the events."""
        self._unsettled += sum(type(command) is Settle for command in todo) - (type(message) is EventsWritten)
        if state.unsettled != self._unsettled:
            raise Violation("as many answers as questions", f"{self._unsettled} are due, {state.unsettled} awaited")

    def _check_launches(self, message: Any, state: State, todo: tuple[Command, ...]) -> None:
        """One launcher at a time, and no node on which no process can be started."""
        if type(message) is LaunchEnded:
            self._unstarted.update(message.failed)
            self._has_launcher = self._has_launcher and not message.has_ended
        elif type(message) is UnusableAnswered and message.purpose is Purpose.AGAIN:  # all are started anew
            self._unstarted.clear()
            self._has_launcher = False
        for command in todo:
            if type(command) is ReleaseRunners:
                self._has_launcher = False
            elif type(command) is StartRunners:
                if self._has_launcher:
                    raise Violation("one launcher at a time", f"{command}")
                if again := self._unstarted.intersection(command.nodes):
                    raise Violation("no runner is started again where none can be", f"{sorted(again)}")
                self._has_launcher = True
                if type(message) is UnusableAnswered and (state.launch.blind or state.launch.failed):
                    raise Violation("a launch begins anew", f"{state.launch}")

    def _check_reports(self, before: State, message: Any, state: State) -> None:
        """What nodes report is known."""
        if state.stage is Stage.ENDED:
            return
        attempt, kind = state.attempt, type(message)
        if kind in _TELLS_STEP and attempt is not None and message.step is not None:
            if before.stage is not Stage.ATTEMPT or message.attempt != attempt.number:
                return
            node = getattr(message, "node", attempt.nodes[0])
            trains = node in attempt.nodes and before.members[node].phase is not Phase.RETURNING
            if trains and (attempt.step is None or attempt.step < message.step):
                raise Violation("what nodes report is known", f"{message}, and the attempt is at step {attempt.step}")

    def _check_boosters(self, before: State, message: Any, state: State, todo: tuple[Command, ...]) -> None:
        """What is said of boosters is what the scheduler is told."""
        self._asked += sum(type(command) is AskAllocation for command in todo) - (type(message) is AllocationAsked)
        if state.stage is Stage.ENDED:
            return
        if self._asked > 1:
            raise Violation("as many boosters as are wanted", f"{self._asked} are asked for at once")
        awaited = [each.allocation for each in state.boosters if each.is_asked]
        if len(awaited) != self._asked:
            raise Violation("as many answers as questions", f"{self._asked} are due, {awaited} are awaited")
        ended = {command.allocation for command in todo if type(command) is EndAllocation}
        told = {each.allocation for each in before.boosters if each.is_end_sent}
        for booster in state.boosters:
            if booster.is_end_sent and booster.allocation not in told and booster.allocation not in ended:
                raise Violation("a booster that is not needed is ended", f"{booster.allocation} is not")
            _check_booster(booster, state)


def check_decision(before: State, message: Any, state: State, todo: tuple[Command, ...], now_s: float) -> None:
    """Checks a decision that is taken, or only tried, by nothing but itself.

    Raises:
        Violation: it is wrong.
    """
    check_input(before, message, state, todo, now_s)
    if before.stage is not Stage.ENDED:
        check_commands(before, state, todo)
        check_choice(before, message, state, todo, now_s)
        check_waits(before, state, now_s, is_acting=bool(todo))
    if state.members is not before.members and state.stage is not Stage.ENDED:
        _check_dismissals(before, state, todo)
    _check_deadlines(state)
    if state.attempt is not None and state.stage is Stage.ATTEMPT:
        _check_over(before, message, state)
        _check_memory(before, state)
    if state.stage is Stage.GATHERING:
        _check_gathering(state)
    if before.stage is Stage.CLOSING and state.stage is not Stage.CLOSING:
        _check_close(before, message, state, now_s)
    if state.attempt is not None and state.stage is Stage.ATTEMPT and state.attempt.phase is AttemptPhase.KILLING:
        _check_killing(state)
    if before.attempt is not None and before.attempt.phase is AttemptPhase.FINDING_CAUSE:
        _check_cause(before, state, now_s)
    for command in todo:
        if type(command) is Dismiss and command.forget:
            _check_forgotten(before, message, todo, command.node)
        _check_stage(command, state)


def _check_deadlines(state: State) -> None:
    """The timer is set for the next deadline."""
    if state.stage is Stage.ENDED:
        return
    roll_call_s = None if state.is_isolated else state.roll_call_s
    for at_s in (state.deadline_s, state.again_s, state.launch.late_s, roll_call_s):
        if at_s is not None and (state.timer_s is None or state.timer_s > at_s):
            raise Violation("no lost timer", f"{at_s} is due, and the timer is at {state.timer_s}")


def _check_over(before: State, message: Any, state: State) -> None:
    """An attempt that is over ends."""
    attempt = state.attempt
    assert attempt is not None
    is_written = type(message) is EventsWritten and not state.unsettled
    if is_written and before.attempt is attempt and attempt.phase is AttemptPhase.RECORDING:
        raise Violation("an attempt that is over ends", f"attempt {attempt.number} is still recording")
    is_over = state.requests.is_cancelled or (state.job.has_checkpoint and bool(attempt.faults))
    is_explained = state.requests.is_cancelled or state.requests.sigterm is not Sigterm.ASKED
    may_wait = attempt.all_ended and not is_explained
    if is_over and not may_wait and attempt.phase in (AttemptPhase.STARTING, AttemptPhase.TRAINING):
        raise Violation("an attempt that is over ends", f"attempt {attempt.number} goes on: {attempt.faults}")


def _check_memory(before: State, state: State) -> None:
    """The newest step is written from memory before a cancelled job ends, if all its agents serve."""
    was, attempt, agents = before.attempt, state.attempt, state.agents
    if was is None or attempt is None or attempt.outcome != "cancelled" or not state.job.has_checkpoint:
        return
    is_decided = was.number == attempt.number and not was.outcome and attempt.phase is AttemptPhase.KILLING
    if is_decided and agents.phase is AgentPhase.UP and not agents.gone:
        raise Violation("a job's memory is not freed before it is written", f"attempt {attempt.number} is killed")


def _check_stage(command: Command, state: State) -> None:
    """The stage tells what is waited for."""
    awaits = _AWAITS.get(type(command))
    if awaits is None or state.stage is awaits or state.stage in _AT_END:
        return
    if type(command) is AskUnusable and command.purpose not in (Purpose.START, Purpose.AGAIN):
        phases = {node: state.members[node].phase for node in command.nodes if node in state.members}
        if command.purpose is Purpose.RETURN and {*phases.values()} - {Phase.RETURNING}:
            raise Violation("a node that is back is judged", f"{command}: {phases}")
        return
    raise Violation("the stage tells what is waited for", f"{command} in {state.stage}")


def _check_dismissals(before: State, state: State, todo: tuple[Command, ...]) -> None:
    """The runner of a node that is out, and not only lost, exits."""
    if state.holders and (out := [node for node in state.holders if state.members[node].phase is Phase.OUT]):
        raise Violation("a holder that is out holds nothing", f"{out} of {state.holders}")
    dismissed = {command.node for command in todo if type(command) is Dismiss}
    for node, member in state.members.table.items():
        if member.phase is not Phase.OUT or member.is_lost or node in dismissed:
            continue
        was = before.members.table.get(node)
        if was is None or (was.phase is not Phase.OUT and was.phase is not Phase.RETURNING):
            raise Violation("the runner of a node that is out exits", f"{node}: {member}, before {was}")


def _check_forgotten(before: State, message: Any, todo: tuple[Command, ...], node: str) -> None:
    """The memory of a node of the base is removed only if more is known about the node than that it was lost."""
    if node not in before.job.nodes:
        return
    out = [before.history.out[node]] if node in before.history.out else []
    is_recorded = any(not why.is_lost for why in out) or any(
        type(command) is Record and command.event == "node_out" and command.fields["node"] == node
        and not command.fields.get("lost")
        for command in todo
    )  # fmt: skip
    named = message.unusable if type(message) is UnusableAnswered else (getattr(message, "node", None),)
    if not is_recorded and node not in named:
        raise Violation("no memory is removed without a reason", f"that of {node} after {message}")


def _check_cause(before: State, state: State, now_s: float) -> None:
    """Failures that follow from another one are no cause before that one had the time to be reported."""
    of, now = before.attempt, state.attempt
    assert of is not None
    if now is None or now.phase is AttemptPhase.FINDING_CAUSE or of.faults or state.requests.is_cancelled:
        return
    told = {failure.node for failure in now.failures}
    is_clear = bool(now.failures) and not find_cause(now.failures, now.evidence).is_secondary
    is_complete = len(told) + len(now.ended) >= len(now.nodes)
    is_new = len(now.faults) > 1 or (now.faults and now.faults[0].node not in told) or now.lost != of.lost
    if not (is_clear or is_complete or is_new) and now_s < of.phase_s + SECONDARY_CAUSE_WINDOW_S - 0.001:
        raise Violation("a failure that follows is no cause", f"{now.failures} after {now_s - of.phase_s:.2f} s")


def _check_late_start(command: Record, state: State) -> None:
    """A node whose workers could not be started does not train again, unless that is true of all."""
    node, attempt = command.fields.get("node"), state.attempt
    assert attempt is not None
    if node is None or node not in state.members or state.members[node].phase is Phase.OUT:
        return
    if any(state.members[other].is_warm for other in attempt.nodes if other in state.members):
        raise Violation("a node that cannot start workers is out", f"{dict(command.fields)}: {state.members[node]}")


def _check_booster(booster: Booster, state: State) -> None:
    if booster.phase is BoosterPhase.RECORDING and not state.unsettled:
        raise Violation("no request of a booster is forgotten", f"{booster}")
    if booster.phase is BoosterPhase.LEAVING and not (booster.nodes or booster.has_ended or booster.is_end_sent):
        raise Violation("a booster that is not needed is ended", f"{booster}")
    if booster.nodes and booster.phase is BoosterPhase.QUEUED:
        raise Violation("each booster has its phase", f"{booster.allocation} is queued with {booster.nodes}")
    if booster.phase is BoosterPhase.LEAVING:
        for node in booster.nodes:
            if state.members[node].phase in _NOT_LEAVING:
                raise Violation("each booster has its phase", f"{node} of {booster.allocation}: {state.members[node]}")


def _check_gathering(state: State) -> None:
    """Enough nodes are there: the attempt begins, or a time is set for that."""
    members = state.members
    if members.joining_count or members.usable < state.job.sizes[-1] or state.requests.sigterm is Sigterm.ASKED:
        return
    latest_s = state.stage_s + state.job.elastic.faulty_scale_down_timeout_s
    if state.lost_s is not None:
        latest_s = max(latest_s, state.lost_s + LOSSES_S)
    if state.timer_s is None or state.timer_s > latest_s + 0.001:
        raise Violation("nothing waits for nothing", f"all nodes are there, and the timer is at {state.timer_s}")


def _check_close(before: State, message: Any, state: State, now_s: float) -> None:
    """The end waits for the folder."""
    is_late = before.deadline_s is not None and now_s >= before.deadline_s
    is_probed = type(message) is FolderProbed
    is_hurried = is_asked(state.requests) and (is_probed or before.again_s is not None)
    is_there = (is_probed and message.error is None) or type(message) is FolderRemoved
    if not (is_late or is_hurried or is_there):
        raise Violation("the end waits for the folder", f"{message}: {state.stage}")


def _check_killing(state: State) -> None:
    attempt, table = state.attempt, state.members.table
    assert attempt is not None
    awaited = [node for node in attempt.nodes if node not in attempt.killed]
    if all(node not in table or (table[node].phase is Phase.OUT and table[node].is_lost) for node in awaited):
        raise Violation("nobody waits for a node that is lost", f"{awaited} are awaited")
