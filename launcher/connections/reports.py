"""Converts the runners' messages to inputs of the core, and combines their heartbeats to the attempt's progress."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.base.messages import MalformedMessage, check_whole
from launcher.connections.channel import Message
from launcher.connections.messages import FROM_RUNNER
from launcher.core.faults import FaultKind
from launcher.core.hang import WorkSection
from launcher.core.inputs import (
    AgentEnded,
    AgentLost,
    AgentsRejoined,
    Committed,
    FaultReported,
    FirstStep,
    Input,
    Lingering,
    NodeBroken,
    NodeIncident,
    NodeJoined,
    Progress,
    Reported,
    Restored,
    RestoreRefused,
    StacksTaken,
    StopHandled,
    Terminated,
    WorkersEnded,
    WorkersKilled,
    WorkersStarted,
)
from launcher.diagnosis import NodeEvidence, WorkerFailure
from launcher.diagnosis.hang_facts import RankFacts
from launcher.diagnosis.policy import Action
from launcher.diagnosis.ras import RasProcess
from launcher.diagnosis.slow_rank import RankTimes
from launcher.history.steps import NodeSteps

log = logging.getLogger(__name__)

# reports of agents that are recorded and need no decision
_RECORDED = ("problem", "rebuilt", "stop_agreed", "loaded", "line", "finishing", "cadence")


def to_input(node: str, message: Message) -> Input | None:
    """Convert a runner's message to an input of the core; None if the core does not need it.

    A malformed message may be the one that the job waits for, so the node counts as broken.

    Args:
        node: the runner's node.
        message: the message; see launcher.connections.messages.
    """
    if (broken := misunderstood(node, message)) is not None:
        return broken
    read = _READ.get(message["op"])
    try:
        return None if read is None else read(node, message)
    except (KeyError, TypeError, ValueError) as error:
        return _broken(node, f"malformed {message['op']!r}: {error!r}")


def misunderstood(node: str, message: Message) -> NodeBroken | None:
    """The input for a message that is not as the catalogue has it."""
    try:
        check_whole(message, FROM_RUNNER)
    except MalformedMessage as error:
        return _broken(node, str(error))
    return None


def _broken(node: str, error: str) -> NodeBroken:
    reason = f"its runner and the supervisor do not understand each other: {error}"
    log.error("%s: %s", node, reason)
    return NodeBroken(node=node, reason=reason, is_environment=False)


class Heartbeats:
    """Combines the heartbeats of an attempt's nodes, at little cost for each of thousands of nodes."""

    def __init__(self) -> None:
        self._times: list[tuple[str, RankTimes]] = []
        self._attempt: int | None = None
        self._warm: set[str] = set()
        self._last: Progress | None = None
        self._is_active = False
        self._forget(None)

    def add(self, node: str, message: Message) -> bool:
        """Add a heartbeat. Returns whether it is the first that reports the node as warm."""
        attempt = message["attempt"]
        if attempt is not None and attempt != self._attempt and attempt >= (self._attempt or 0):
            self._forget(attempt)
        if attempt is not None and attempt == self._attempt:
            self._note(node, message)
        is_new = bool(message["warm"]) and node not in self._warm
        if is_new:
            self._warm.add(node)
        return is_new

    def left(self, node: str) -> None:
        """Forget a node whose runner has disconnected. Its next runner has to become warm again."""
        self._warm.discard(node)

    def progress(self) -> Progress | None:
        """The progress since the previous call; None if there is none."""
        if self._attempt is None:
            return None
        known = [step for step in self._nodes_at if step is not None]
        progress = Progress(
            attempt=self._attempt,
            step=self._step,
            slowest=min(known, default=None),
            is_over=self._has_told and not known,
            is_active=self._is_active,
            rank_ended=self._rank_ended,
            section=max(self._sections.values(), key=list(WorkSection).index, default=WorkSection.STEP),
        )
        self._is_active = False
        if not progress.is_active and progress == self._last:
            return None
        self._last = progress
        return progress

    def take_times(self) -> tuple[int | None, list[tuple[str, RankTimes]]]:
        """The attempt, and the times of its ranks' steps since the previous call, each with its node."""
        taken = self._times
        self._times = []
        return self._attempt, taken

    def steps(self) -> NodeSteps | None:
        """The step of each node now; None before any worker has reported one."""
        if self._attempt is None or self._step is None:
            return None
        nodes = {node: step for node, step in self._slowest.items() if step is not None}
        return NodeSteps(attempt=self._attempt, step=self._step, nodes=nodes)

    def _forget(self, attempt: int | None) -> None:
        self._attempt = attempt
        self._step: int | None = None
        self._slowest: dict[str, int | None] = {}
        self._nodes_at: Counter[int | None] = Counter()  # number of nodes for each value of the mapping above
        self._activity: dict[str, int] = {}
        self._times = []
        self._sections: dict[str, WorkSection] = {}  # of nodes that are in another one than a step
        self._has_told = self._is_active = self._rank_ended = False

    def _note(self, node: str, message: Message) -> None:
        self._rank_ended |= bool(message["rank_ended"])
        self._sections.pop(node, None)
        if (section := WorkSection(message["section"])) is not WorkSection.STEP:
            self._sections[node] = section
        if self._activity.get(node) != message["activity"]:
            self._activity[node] = message["activity"]
            self._is_active = True
        self._times += [(node, RankTimes(*row)) for row in message["times"]]
        step, slowest = message["step"], message["slowest"]
        if step is not None:
            self._step = max(step, self._step or 0)
        before = self._slowest.get(node)
        if slowest == before:
            return
        self._has_told = True
        self._slowest[node] = slowest
        self._nodes_at[slowest] += 1
        self._nodes_at[before] -= 1
        if self._nodes_at[before] <= 0:
            del self._nodes_at[before]


def _hello(node: str, message: Message) -> Input:
    return NodeJoined(
        node=node,
        allocation=message["allocation"],
        attempt=message["attempt"],
        is_warm=message["warm"],
        problem=message["problem"],
    )


def _ended(node: str, message: Message) -> Input:
    failures = tuple(WorkerFailure.from_report(node, failure) for failure in message["failures"])
    return WorkersEnded(
        node=node,
        attempt=message["attempt"],
        ok=bool(message["ok"]),
        failures=failures,
        evidence=NodeEvidence(kernel=tuple(message["kernel"]), oom_kills=message["oom_kills"]),
        reason=message["reason"] or "",
        step=message["step"],
        is_stopped=message["stopped"],
    )


def _fault(node: str, message: Message) -> Input:
    action = message["action"]
    return FaultReported(
        node=node, attempt=message["attempt"], kind=FaultKind(message["kind"]), reason=message["reason"],
        rank=message["rank"], action=None if action is None else Action(action),
    )  # fmt: skip


def _stacks(node: str, message: Message) -> Input:
    stacks = tuple(RankFacts.from_report(node, rank) for rank in message["ranks"])
    ras = tuple(RasProcess.from_report(process) for process in message["ras"])
    return StacksTaken(node=node, attempt=message["attempt"], stacks=stacks, ras=ras)


def _monitor(node: str, message: Message) -> Input | None:
    """An event of the node's checkpoint agent."""
    event, attempt = dict(message["event"]), message["attempt"]
    name = event.pop("event", None)
    if name == "restore_plan":
        return Restored(attempt=attempt, fields=_free(event))
    if name == "rejoined":
        return AgentsRejoined(attempt=attempt, generation=event["generation"], step=event["step"])
    if name == "commit":
        step, tier = event.pop("step"), event.pop("tier")
        return Committed(attempt=attempt, step=step, tier=tier, fields=_free(event))
    if name == "restore_refused":
        return RestoreRefused(node=node, attempt=attempt, reason=str(event["reason"]))
    return Reported(node=node, attempt=attempt, event=name, fields=_free(event)) if name in _RECORDED else None


def _free(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The event's own fields. The supervisor adds the attempt and the node."""
    return {key: value for key, value in fields.items() if key not in ("attempt", "node", "time", "event")}


_READ: Mapping[str, Callable[[str, Message], Input | None]] = {
    "hello": _hello,
    "broken": lambda node, m: NodeBroken(node=node, reason=str(m["reason"]), is_environment=bool(m["environment"])),
    "incident": lambda node, m: NodeIncident(node=node, reason=m["reason"]),
    "signal": lambda node, m: Terminated(node=node),
    "started": lambda node, m: WorkersStarted(node=node, attempt=m["attempt"]),
    "ended": _ended,
    "killed": lambda node, m: WorkersKilled(
        node=node, attempt=m["attempt"], step=m["step"], left=tuple(m["left"]), held=m["held"]
    ),
    "lingering": lambda node, m: Lingering(node=node, attempt=m["attempt"], held=m["held"], wait_s=m["wait_s"]),
    "first_step": lambda node, m: FirstStep(node=node, attempt=m["attempt"], step=m["step"], time_s=m["time"]),
    "problem": lambda node, m: Reported(
        node=node, attempt=m["attempt"], event="problem", fields={"what": m["what"], "detail": m["detail"]}
    ),
    "stopping": lambda node, m: StopHandled(node=node, attempt=m["attempt"], has_handler=bool(m["handled"])),
    "fault": _fault,
    "stacks": _stacks,
    "monitor": _monitor,
    "agent_lost": lambda node, m: AgentLost(
        node=node, attempt=m["attempt"], generation=m["generation"], reason=m["reason"] or "it ended"
    ),
    "agent_ended": lambda node, m: AgentEnded(node=node, attempt=m["attempt"]),
}
