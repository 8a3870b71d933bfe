"""The journal of one supervisor: its commands and events, and what was reported to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from launcher.core import commands as do
from launcher.core import inputs as given
from launcher.core.stop_reasons import StopReason

_LOSES_NODE = ("node_lost", "preempted", "runner_lost", "environment", "agent_lost")
_ENDS = (do.Order.RELEASE_AGENT, do.Order.FINISH_AGENT, do.Order.KILL)
_QUESTIONS: dict[type, type] = {
    given.EventsWritten: do.Settle,
    given.AllocationAsked: do.AskAllocation,
    given.TerminationExplained: do.AskWhyTerminated,
    given.TimeLeftAnswered: do.AskTimeLeft,
    given.FolderProbed: do.ProbeFolder,
    given.Requeued: do.Requeue,
}


class Journal:
    """The record of one supervisor.

    Args:
        past: the events in the file as it begins.
        todo: the commands of its first decision.

    Attributes:
        number, nodes, holders: of the attempt that began last; the number is -1 before the first.
        runs: whether its end is not recorded.
        started, lost: its nodes whose workers run; those that are a fault of the attempt.
        seen, orders: the events and the orders about it; committed: the newest step recorded in each tier.
        there: nodes whose runners are connected.
        out: nodes that are out, and whether they are only lost; unprepared: those that the next start may have.
        replaced: nodes that were replaced because attempts failed on them, since the last commit.
        boosters: those asked for, whose end is not recorded; of_boosters: the allocations of their nodes.
        leaving, ended: boosters that leave; that were ordered to end.
        asked: questions and requests without an answer, by kind.
        are_launched, has_launcher: whether runners are being started; whether their launcher acts on nodes.
        stop, is_cancelled: why ranks are to stop; whether the job was cancelled.
        scale, timer_s: the size that a user wants; the time of the timer.
        is_isolated, is_closing, is_over: whether most nodes are silent; whether the job is about to end; has ended.
    """

    def __init__(self, past: Iterable[Mapping[str, Any]], todo: Iterable[do.Command]) -> None:
        self.number = -1
        self.nodes: tuple[str, ...] = ()
        self.holders: tuple[str, ...] = ()
        self.runs = False
        self.started, self.lost, self.seen = set[str](), set[str](), set[str]()
        self.orders: set[do.Order] = set()
        self.committed: dict[str, int] = {}
        self.there, self.unprepared, self.replaced = set[str](), set[str](), set[str]()
        self.out: dict[str, bool] = {}
        self.boosters, self.leaving, self.ended = set[str](), set[str](), set[str]()
        self.of_boosters: dict[str, str] = {}
        self.asked: Counter[type | do.Purpose] = Counter()
        self.are_launched = self.has_launcher = False
        self.stop: str | None = None
        self.is_cancelled = self.is_isolated = self.is_closing = self.is_over = False
        self.scale: int | None = None
        self.timer_s: float | None = None
        for event in past:
            self._record(event["event"], event)
        self._take_commands(todo)

    @property
    def is_ending(self) -> bool:
        """Whether the processes of the attempt are being ended."""
        return not self.orders.isdisjoint(_ENDS)

    def take(self, message: given.Input, todo: Iterable[do.Command]) -> None:
        """Takes a decision."""
        self._take_input(message)
        self._take_commands(todo)

    def _take_input(self, message: given.Input) -> None:
        match message:
            case given.NodeLost(node=node):
                self._lose(node)
            case given.WorkersStarted(node=node, attempt=self.number):
                self.started.add(node)
            case given.IsolationChanged():
                self.is_isolated = message.is_isolated
            case given.LaunchEnded():
                self.has_launcher = self.has_launcher and not message.has_ended
            case given.TimerFired():
                self.timer_s = None
            case given.UnusableAnswered():
                self.asked[message.purpose] -= 1
                self.has_launcher = self.has_launcher and message.purpose is not do.Purpose.AGAIN
        if (question := _QUESTIONS.get(type(message))) is not None:
            self.asked[question] = max(0, self.asked[question] - 1)

    def _take_commands(self, todo: Iterable[do.Command]) -> None:
        for command in todo:
            match command:
                case do.Record():
                    self._record(command.event, command.fields)
                case do.SetTimer():
                    self.timer_s = command.at_s
                case do.Send(attempt=self.number):
                    self.orders.add(command.order)
                case do.Dismiss(node=node) if command.allocation == self.of_boosters.get(node, ""):
                    self._lose(node)
                    if node in self.out:
                        self.out[node] = False
                case do.StartRunners():
                    self.has_launcher = self.are_launched = True
                case do.ReleaseRunners():
                    self.has_launcher = self.are_launched = False
                case do.EndAllocation():
                    self.ended.add(command.allocation)
                case do.AskUnusable():
                    self.asked[command.purpose] += 1
                case do.ProbeFolder(attempt=None):
                    self.is_closing = True
                case do.EndJob():
                    self.is_over = True
            if type(command) in _QUESTIONS.values():
                self.asked[type(command)] += 1

    def _record(self, event: str, fields: Mapping[str, Any]) -> None:
        node, allocation = str(fields.get("node")), fields.get("allocation")
        match event:
            case "job_start":
                self._begin_anew()
            case "job_end":
                self.out.clear()
                self.scale = None
            case "takeover":
                is_whole = "fault" not in self.seen and self.out.keys().isdisjoint(self.nodes)
                self.runs = self.runs and "workers_started" in self.seen and is_whole
                self.there = set()
            case "attempt_start":
                self._begin_attempt(fields)
            case "attempt_end":
                self.runs = False
            case "fault" if fields.get("attempt") == self.number and fields["kind"] in _LOSES_NODE:
                self.lost.add(node)
            case "commit":
                self.committed[fields["tier"]] = fields["step"]
                self.replaced.clear()
            case "problem" if "a spare takes its place" in fields["what"]:
                self.replaced.add(node)
            case "holders_released":
                self.holders = ()
            case "node_ready":
                self.there.add(node)
                if allocation is not None:
                    self.of_boosters[node] = allocation
            case "node_out":
                self._lose(node)
                self.out[node] = bool(fields.get("lost"))
                if fields.get("environment") or fields.get("cause") == "drained":
                    self.unprepared.add(node)
            case "node_back":
                self.out.pop(node, None)
            case "booster_asked":
                self.boosters.add(str(allocation))
            case "booster_leaving" | "booster_end" | "node_leaving" if allocation is not None:
                self.leaving.add(allocation)
                if event == "booster_end":
                    self.boosters.discard(allocation)
            case "resize" | "node_leaving":
                self.stop = self.stop or StopReason.RESIZE
            case "stop_requested" if fields["reason"] == StopReason.CANCEL:
                self.is_cancelled = True
            case "stop_requested" if not fields.get("detail"):
                self.stop = fields["reason"]
            case "scale_requested":
                self.scale = fields.get("nodes")
        if fields.get("attempt") == self.number:
            self.seen.add(event)

    def _begin_anew(self) -> None:
        """The scheduler has started the job (again)."""
        self.boosters, self.leaving, self.of_boosters = set(), set(), {}
        self.there = set()
        self.out = {node: is_lost for node, is_lost in self.out.items() if node not in self.unprepared}
        self.unprepared, self.runs, self.stop, self.is_cancelled = set(), False, None, False

    def _begin_attempt(self, fields: Mapping[str, Any]) -> None:
        self.number, self.runs = fields["attempt"], True
        self.nodes, self.holders = tuple(fields["nodes"]), tuple(fields.get("holders", ()))
        self.started, self.lost, self.seen, self.orders, self.committed = set(), set(), set(), set(), {}
        if self.stop == StopReason.RESIZE:
            self.stop = None

    def _lose(self, node: str) -> None:
        self.there.discard(node)
        self.holders = tuple(other for other in self.holders if other != node)
