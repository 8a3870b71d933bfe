"""The working state of one decision: the state as it changes, and the commands so far."""

from __future__ import annotations

from typing import Any

from launcher.core.commands import Command, Dismiss, Record, Settle
from launcher.core.faults import Fault
from launcher.core.frozen import replace
from launcher.core.members import Member, Phase, is_usable
from launcher.core.replay import apply
from launcher.core.state import (
    AgentPhase,
    AgentWorld,
    Attempt,
    AttemptPhase,
    Booster,
    BoosterPhase,
    Launch,
    Requests,
    Stage,
    State,
)


class Turn:
    """Exists only during one decision.

    Attributes:
        state: the state; replaced by each change.
        now_s: the time of the input.
        commands: the commands for the driver, in order.
        next_s: the earliest time that was asked for in this pass and has not come; None: no time was.
    """

    __slots__ = ("commands", "next_s", "now_s", "state")

    def __init__(self, state: State, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.commands: list[Command] = []
        self.next_s: float | None = None

    def do(self, command: Command) -> None:
        self.commands.append(command)

    def settle(self) -> None:
        """Requests EventsWritten once the events so far are in the file."""
        self.state = replace(self.state, unsettled=self.state.unsettled + 1)
        self.do(Settle())

    def enter(self, stage: Stage, *, timeout_s: float | None = None, again_s: float | None = None) -> None:
        """Begins a stage of the job. Its times start now."""
        self.state = replace(
            self.state,
            stage=stage,
            stage_s=self.now_s,
            deadline_s=None if timeout_s is None else self.now_s + timeout_s,
            again_s=None if again_s is None else self.now_s + again_s,
        )

    def enter_phase(self, phase: AttemptPhase) -> None:
        """Begins a phase of the attempt."""
        self.attempt = replace(self.attempt, phase=phase, phase_s=self.now_s)

    def enter_agents(self, phase: AgentPhase, *, until_s: float | None = None) -> None:
        """Begins a phase of the attempt's agents."""
        self.agents = replace(self.agents, phase=phase, until_s=until_s)

    def due(self, at_s: float | None) -> bool:
        """Whether a time has come. If not, the job is advanced again at that time.

        Args:
            at_s: None: it never comes.
        """
        if at_s is None or self.now_s >= at_s:
            return at_s is not None
        if self.next_s is None or at_s < self.next_s:
            self.next_s = at_s
        return False

    def has_passed(self, seconds: float) -> bool:
        """Whether the attempt's phase has lasted this long. As `due`."""
        return self.due(self.attempt.phase_s + seconds)

    @property
    def attempt(self) -> Attempt:
        """The running attempt. Called only if there is one."""
        attempt = self.state.attempt
        if attempt is None:
            raise RuntimeError("no attempt was begun")
        return attempt

    @attempt.setter
    def attempt(self, attempt: Attempt) -> None:
        self.state = replace(self.state, attempt=attempt)

    @property
    def agents(self) -> AgentWorld:
        return self.state.agents

    @agents.setter
    def agents(self, agents: AgentWorld) -> None:
        self.state = replace(self.state, agents=agents)

    @property
    def launch(self) -> Launch:
        return self.state.launch

    @launch.setter
    def launch(self, launch: Launch) -> None:
        self.state = replace(self.state, launch=launch)

    @property
    def requests(self) -> Requests:
        return self.state.requests

    @requests.setter
    def requests(self, requests: Requests) -> None:
        self.state = replace(self.state, requests=requests)

    def put_member(self, node: str, member: Member) -> None:
        self.state = replace(self.state, members=self.state.members.put(node, member))

    def put_booster(self, booster: Booster) -> None:
        others = self.state.boosters
        boosters = tuple(booster if each.allocation == booster.allocation else each for each in others)
        self.state = replace(self.state, boosters=boosters)

    def member(self, node: str) -> Member:
        return self.state.members[node]

    def booster(self, allocation: str) -> Booster | None:
        """The booster of an allocation; None for the base, and for an unknown allocation."""
        return next((each for each in self.state.boosters if each.allocation == allocation), None)

    def record(self, event: str, **fields: Any) -> None:
        """Writes an event and folds it into the history. Fields that are None are left out."""
        given = {key: value for key, value in fields.items() if value is not None}
        time_s = round(self.now_s, 3)
        self.do(Record(event=event, time_s=time_s, fields=given))
        history = apply(self.state.history, {"time": time_s, "event": event, **given})
        if history is not self.state.history:
            self.state = replace(self.state, history=history)

    def see_step(self, step: int | None) -> None:
        """Updates the newest finished step of the attempt."""
        if step is None:
            return
        attempt, state = self.attempt, self.state
        if step > (attempt.step if attempt.step is not None else -1):
            self.attempt = replace(self.attempt, step=step)
        if step > (state.step if state.step is not None else -1):
            self.state = replace(self.state, step=step)

    def put_out(self, node: str, reason: str, *, is_environment: bool = False, cause: str | None = None) -> None:
        """Excludes a node from the job for the rest of its life.

        Args:
            cause: why the job has left it, if it has not failed.
        """
        member = self.member(node)
        if member.phase in (Phase.OUT, Phase.RETURNING):
            environment = member.is_environment or is_environment
            self.put_member(
                node, replace(self.member(node), phase=Phase.OUT, is_lost=False, is_environment=environment)
            )
        else:
            self.put_member(
                node, replace(self.member(node), phase=Phase.OUT, reason=reason, is_environment=is_environment)
            )
            self.record("node_out", node=node, reason=reason, environment=is_environment or None, cause=cause)
        self._let_go(node)
        is_base = self.booster(member.allocation) is None
        self.do(Dismiss(node=node, forget=True, allocation="" if is_base else member.allocation))

    def lose(self, node: str, reason: str) -> None:
        """Continues without a node that cannot be reached. It is taken back if its runner connects again."""
        member = self.member(node)
        if member.phase in (Phase.RETURNING, Phase.LEAVING):
            self.put_member(node, replace(self.member(node), phase=Phase.OUT, is_lost=True))
        elif member.phase is not Phase.OUT:
            self.put_member(node, replace(self.member(node), phase=Phase.OUT, reason=reason, is_lost=True))
            self.record("node_out", node=node, reason=reason, lost=True)
        self._let_go(node)

    def leave_out(self, node: str, reason: str) -> None:
        """Continues without a node about which nothing bad is known. This is not recorded."""
        self.put_member(node, replace(self.member(node), phase=Phase.OUT, reason=reason))
        self._let_go(node)
        self.do(Dismiss(node=node, forget=False))

    def _let_go(self, node: str) -> None:
        """The memory of a node that is out cannot be used."""
        if node in self.state.holders:
            self.state = replace(self.state, holders=tuple(other for other in self.state.holders if other != node))

    def take_back(self, node: str) -> None:
        """Takes back a node that was lost. It may be one of an earlier start, which this start does not have."""
        member = self.state.members.table.get(node)
        if member is None or not member.is_lost:
            self.record("node_back", node=node)
            return
        self.put_member(node, replace(self.member(node), phase=Phase.JOINING, reason="", is_lost=False, ending=None))
        self.record("node_back", node=node)
        if member.phase is Phase.RETURNING:
            self.add_ready(node, is_warm=member.is_warm)

    def take_all_back(self, what: str) -> bool:
        """Takes all lost nodes of the base back if none is left, this one included: only their runners can be lost."""
        base = {node: self.member(node) for node in self.state.job.nodes}
        lost = [node for node, member in base.items() if member.is_lost]
        if not lost or any(is_usable(member) for member in base.values()):
            return False
        self.record("problem", what=what)
        for node in lost:
            self.take_back(node)
        return True

    def add_ready(self, node: str, *, is_warm: bool) -> None:
        """A node's runner has connected."""
        attempt = self.state.attempt
        trains = attempt is not None and attempt.is_running and node in attempt.nodes and node not in attempt.lost
        member = self.member(node)
        booster = self.booster(member.allocation)
        phase = Phase.TRAINING if trains else Phase.READY
        if booster is not None and booster.phase is BoosterPhase.LEAVING:
            phase = Phase.LEAVING
        self.put_member(node, replace(self.member(node), phase=phase, is_warm=member.is_warm or is_warm))
        allocation = booster.allocation if booster is not None else None
        self.record("node_ready", node=node, warm=is_warm, allocation=allocation)

    def add_fault(self, fault: Fault) -> None:
        """Adds a cause of the attempt's end. record_faults() records it before its consequences."""
        attempt = self.attempt
        fault_s = self.now_s if attempt.fault_s is None else attempt.fault_s
        self.attempt = replace(self.attempt, faults=(*attempt.faults, fault), fault_s=fault_s)

    def record_fault(self, fault: Fault, **fields: Any) -> None:
        """Records a fault and its diagnosis."""
        found = fault.diagnosis
        told = {
            "node": fault.node, "kind": fault.kind, "rank": fault.rank, "reason": fault.reason,
            "traceback": fault.traceback, "class": found.fault_class.value, "domain": found.domain.value,
            "proof": found.proof or None, "advice": found.advice, "alike": found.alike or None,
            "others": list(found.others) or None,
            "consequences": found.consequences or None,
        }  # fmt: skip
        self.record("fault", **fields, **told)

    def record_faults(self) -> None:
        """Records the attempt's new faults, the decisive one first."""
        attempt = self.attempt
        for fault in attempt.faults[attempt.recorded :]:
            since_s = self.now_s - attempt.fault_s if attempt.fault_s is not None else 0.0
            detect_s = None if fault.detect_s is None else round(fault.detect_s + since_s, 3)
            self.record_fault(fault, attempt=attempt.number, step=attempt.step, detect=detect_s)
        if attempt.recorded < len(attempt.faults):
            self.attempt = replace(self.attempt, recorded=len(attempt.faults))
