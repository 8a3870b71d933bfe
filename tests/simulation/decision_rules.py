"""What each decision of one supervisor must keep to: its state after the input, and the commands that it gives."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from launcher.core.commands import (
    AskAllocation,
    Command,
    EndAllocation,
    LookAtOwnCheckpoints,
    Purpose,
    Record,
    StartRunners,
)
from launcher.core.inputs import (
    AllocationAsked,
    Committed,
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
from launcher.core.members import Phase, is_usable
from launcher.core.requests import is_asked
from launcher.core.state import AttemptPhase, Booster, BoosterPhase, Sigterm, Stage, State
from simulation.violation import Violation

_TELLS_STEP = (Committed, FirstStep, Progress, WorkersEnded, WorkersKilled)
_STRANGER = "which this job has not asked for"
_NOT_LEAVING = (Phase.READY, Phase.TRAINING, Phase.RETURNING)


class DecisionRules:
    """Follows the decisions of one supervisor.

    Args:
        todo: the commands of its first decision.
    """

    __slots__ = ("_asked", "_has_launcher", "_unstarted", "_usable", "_usable_s")

    def __init__(self, todo: Iterable[Command]) -> None:
        self._asked = sum(type(command) is AskAllocation for command in todo)  # boosters, and no answer yet
        self._has_launcher = any(type(command) is StartRunners for command in todo)
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
        self._check_launches(message, todo)
        self._check_reports(before, message, state)
        if state.boosters or before.boosters or self._asked or todo:
            self._check_boosters(before, message, state, todo)
        if state.stage is Stage.GATHERING:
            _check_gathering(state)
        if before.stage is Stage.CLOSING and state.stage is not Stage.CLOSING:
            _check_close(before, message, state, now_s)
        if state.attempt is not None and state.stage is Stage.ATTEMPT and state.attempt.phase is AttemptPhase.KILLING:
            _check_killing(state)
        for command in todo:
            if type(command) is LookAtOwnCheckpoints and not state.job.names_own_checkpoints:
                raise Violation("only files that are named are looked for", f"{command}")
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
        elif command.event == "resize" and command.fields["reason"] == "more nodes are there":
            settled_s = now_s - self._usable_s
            if settled_s < state.job.elastic.scaling_timeout_s:
                raise Violation("a larger attempt waits for more nodes", f"the last came {settled_s:.1f} s ago")

    def _check_launches(self, message: Any, todo: tuple[Command, ...]) -> None:
        """One launcher at a time, and no node on which no process can be started."""
        if type(message) is LaunchEnded:
            self._unstarted.update(message.failed)
            self._has_launcher = self._has_launcher and not (message.has_ended or message.failed)
        elif type(message) is UnusableAnswered and message.purpose is Purpose.AGAIN:  # all are started anew
            self._unstarted.clear()
            self._has_launcher = False
        for command in todo:
            if type(command) is StartRunners:
                if self._has_launcher:
                    raise Violation("one launcher at a time", f"{command}")
                if again := self._unstarted.intersection(command.nodes):
                    raise Violation("no runner is started again where none can be", f"{sorted(again)}")
                self._has_launcher = True

    def _check_reports(self, before: State, message: Any, state: State) -> None:
        """What nodes report is known."""
        if state.stage is Stage.ENDED:
            return
        attempt, kind = state.attempt, type(message)
        if kind is NodeJoined and message.is_warm:
            member = state.members.table.get(message.node)
            if member is not None and is_usable(member) and not member.is_warm:
                raise Violation("what nodes report is known", f"{message}, and it is not warm")
        elif kind is UnusableAnswered and message.purpose is Purpose.RETURN:
            for node in message.asked:
                member = state.members.table.get(node)
                if member is not None and member.phase is Phase.RETURNING and not member.is_judged:
                    raise Violation("a node that is back is judged", f"{message}, and {node} is still returning")
        elif kind is WorkersKilled and message.left and message.node in state.members:
            if state.members[message.node].phase is not Phase.OUT and before.members[message.node].ending is not None:
                raise Violation("a node that is back is judged", f"{message}, and {message.node} is not out")
        elif kind in _TELLS_STEP and attempt is not None and message.step is not None:
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
        if state.asking.is_asked is not (self._asked > 0):
            raise Violation("as many boosters as are wanted", f"{self._asked} asked for: {state.asking}")
        ended = {command.allocation for command in todo if type(command) is EndAllocation}
        told = {each.allocation for each in before.boosters if each.is_end_sent}
        for booster in state.boosters:
            if booster.is_end_sent and booster.allocation not in told and booster.allocation not in ended:
                raise Violation("a booster that is not needed is ended", f"{booster.allocation} is not")
            _check_booster(booster, state)


def _check_booster(booster: Booster, state: State) -> None:
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
