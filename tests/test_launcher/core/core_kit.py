"""Plays inputs into the core. The clock is simulated; what the core asks is answered as a test sets it.

After every decision each member has one phase, each event is one that its readers accept, and a replay of the events
gives the state's history.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from launcher.core import begin, decide, inputs
from launcher.core import commands as do
from launcher.core.commands import Command, Order
from launcher.core.gains import Event
from launcher.core.inputs import Input
from launcher.core.members import Phase
from launcher.core.replay import History, apply, replay
from launcher.core.state import Attempt, JobFacts, State
from launcher.core.stop_reasons import StopReason
from launcher.history.fields import as_event

EPOCH_S = 1_000_000.0
MANY = 10_000  # decisions that follow from one; more of them would never end

C = TypeVar("C")


def make_job(nodes: int = 2, *, train: int | None = None, **fields: Any) -> JobFacts:
    """A job of nodes n1, n2, ... without checkpoints; all of them train unless `train` says how many."""
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    given: dict[str, Any] = {"sizes": (train or nodes,), "has_checkpoint": False}
    return JobFacts(nodes=names, **given | fields)


class Play:
    """One supervisor's life.

    Args:
        job: the job.
        past: its events so far; each may lack its time.

    Attributes:
        now_s: the clock.
        commands: all that were given, the oldest first.
        unusable, scheduler_error: the scheduler's answer to AskUnusable.
        why_terminated, left_s, requeue_error: its answers to the other questions.
        failed: nodes that the runners' launcher could not reach.
        folder_error: what ProbeFolder meets.
        step: of the workers when they are killed.
        silent: kinds of commands that are not answered.
        dead: nodes that confirm nothing.
    """

    def __init__(self, job: JobFacts, past: Iterable[Event] = ()) -> None:
        self.now_s = EPOCH_S
        self.commands: list[Command] = []
        self.unusable: Mapping[str, str] = {}
        self.scheduler_error: str | None = None
        self.why_terminated = "requeue"
        self.left_s: Callable[[float], float | None] = lambda now_s: None
        self.requeue_error: str | None = None
        self.failed: Mapping[str, str] = {}
        self.folder_error: str | None = None
        self.step: int | None = None
        self.silent: set[type] = set()
        self.dead: set[str] = set()
        self._generation = 0
        self._job = job
        self._past = [{"time": EPOCH_S - 100.0, **event} for event in past]
        self._history = replay(self._past, History(has_checkpoint=job.has_checkpoint))
        self._state: State | None = None

    @property
    def state(self) -> State:
        if self._state is None:
            raise RuntimeError("not begun")
        return self._state

    @property
    def attempt(self) -> Attempt:
        attempt = self.state.attempt
        if attempt is None:
            raise RuntimeError("no attempt")
        return attempt

    # What happens.

    def begin(self) -> list[Command]:
        return self._follow(*begin(self._job, self._past, self.now_s))

    def give(self, *given: Input) -> list[Command]:
        """Inputs of this moment; returns the commands that follow, those that follow from answers included."""
        followed: list[Command] = []
        for each in given:
            followed += self._follow(*decide(self.state, each, self.now_s))
        return followed

    def passes(self, seconds: float) -> list[Command]:
        """Time passes; returns the commands that timers cause."""
        end_s = self.now_s + seconds
        followed: list[Command] = []
        for _ in range(MANY):
            timer_s = self.state.timer_s
            if timer_s is None or timer_s > end_s:
                self.now_s = end_s
                return followed
            self.now_s = max(self.now_s, timer_s)
            followed += self.give(inputs.TimerFired())
        raise AssertionError(f"the timer fires without end in {self.state.stage}")

    def come(self, *nodes: str, attempt: int | None = None) -> list[Command]:
        """Runners connect; all of the job's where none are named."""
        nodes = nodes or self._job.nodes
        return self.give(*(inputs.NodeJoined(node=node, attempt=attempt, is_warm=True) for node in nodes))

    def boost(self, node: str, allocation: str, *, is_warm: bool = True, attempt: int | None = None) -> list[Command]:
        """The runner of a booster connects."""
        return self.give(inputs.NodeJoined(node=node, allocation=allocation, is_warm=is_warm, attempt=attempt))

    def train(self) -> list[Command]:
        """The workers of the attempt start on all its nodes, and go on from what the agents restore."""
        number, nodes = self.attempt.number, self.attempt.nodes
        started = self.give(*(inputs.WorkersStarted(node=node, attempt=number) for node in nodes))
        if self._job.has_checkpoint:
            fields = {"step": 0, "tier": "none", "seconds": 0.1}
            started += self.give(inputs.Restored(attempt=number, fields=fields))
        return started

    def run(self) -> list[Command]:
        """From the start to an attempt that trains on all nodes that may."""
        return [*self.begin(), *self.come(), *self.train()]

    def lose(self, *nodes: str) -> list[Command]:
        """The connections to runners close."""
        return self.give(*(inputs.NodeLost(node=node, reason="its connection closed") for node in nodes))

    def end_well(self, *nodes: str, step: int | None = None) -> list[Command]:
        """Workers end well; those of all nodes of the attempt where none are named."""
        number, nodes = self.attempt.number, nodes or self.attempt.nodes
        is_stopped = any(order.attempt == number for order in self.orders(Order.STOP))
        ends = {"attempt": number, "ok": True, "step": step, "is_stopped": is_stopped}
        return self.give(*(inputs.WorkersEnded(node=node, **ends) for node in nodes))

    def fail(self, node: str, reason: str = "no /venv") -> list[Command]:
        """The workers of a node cannot go on."""
        return self.give(inputs.WorkersEnded(node=node, attempt=self.attempt.number, ok=False, reason=reason))

    def commit(self, step: int, tier: str = "memory") -> list[Command]:
        return self.give(inputs.Committed(attempt=self.attempt.number, step=step, tier=tier))

    # What was commanded.

    def all(self, kind: type[C]) -> list[C]:
        """The commands of one kind."""
        return [command for command in self.commands if isinstance(command, kind)]

    def events(self, *names: str) -> list[dict[str, Any]]:
        """What was recorded: these events, or all."""
        recorded = [{"event": each.event, "time": each.time_s, **each.fields} for each in self.all(do.Record)]
        return [event for event in recorded if not names or event["event"] in names]

    def orders(self, order: Order) -> list[do.Send]:
        return [each for each in self.all(do.Send) if each.order is order]

    @property
    def end(self) -> do.EndJob | None:
        return next(iter(self.all(do.EndJob)), None)

    @property
    def out(self) -> dict[str, str]:
        return self.state.members.out()

    def in_phase(self, phase: Phase) -> list[str]:
        return sorted(node for node, member in self.state.members.table.items() if member.phase is phase)

    # The surroundings.

    def _follow(self, state: State, commands: tuple[Command, ...]) -> list[Command]:
        self._take(state, commands)
        followed = list(commands)
        pending = deque(commands)
        for _ in range(MANY):
            if not pending:
                return followed
            for answer in self._answers(pending.popleft()):
                state, commands = decide(self.state, answer, self.now_s)
                self._take(state, commands)
                followed += commands
                pending += commands
        raise AssertionError(f"commands follow from answers without end in {self.state.stage}")

    def _take(self, state: State, commands: tuple[Command, ...]) -> None:
        self._state = state
        self.commands += commands
        for command in commands:
            if isinstance(command, do.Record):
                event = {"event": command.event, "time": command.time_s, **command.fields}
                written = json.loads(json.dumps(event))
                assert as_event(written) == written, f"readers do not accept {event}"
                self._history = apply(self._history, written)
        assert state.history == self._history, "a replay of the events gives another history"
        found = Counter(member.phase for member in state.members.table.values())
        assert found == Counter(dict(state.members.counts)), "members are counted wrong"

    def _answers(self, command: Command) -> Iterator[Input]:
        if type(command) in self.silent:
            return
        if isinstance(command, do.ProbeFolder):
            yield inputs.FolderProbed(error=self.folder_error)
        elif isinstance(command, do.Settle):
            yield inputs.EventsWritten()
        elif isinstance(command, do.AskUnusable):
            unusable = {node: reason for node, reason in self.unusable.items() if node in command.nodes}
            error = self.scheduler_error
            yield inputs.UnusableAnswered(
                asked=command.nodes, purpose=command.purpose, unusable={} if error else unusable, error=error
            )
        elif isinstance(command, do.AskAllocation):
            error = self.scheduler_error
            job_id = "" if error is not None else command.allocation.replace("b", "4")
            yield inputs.AllocationAsked(allocation=command.allocation, job_id=job_id, error=error)
        elif isinstance(command, do.AskWhyTerminated):
            yield inputs.TerminationExplained(why=StopReason(self.why_terminated))
        elif isinstance(command, do.AskTimeLeft):
            yield inputs.TimeLeftAnswered(left_s=self.left_s(self.now_s))
        elif isinstance(command, do.AskLaunch):
            yield inputs.LaunchEnded(failed=self.failed, has_ended=False)
        elif isinstance(command, do.Requeue):
            yield inputs.Requeued(error=self.requeue_error)
        elif isinstance(command, do.StartAgents):
            self._generation = command.generation
        elif isinstance(command, do.KillAgents):
            yield inputs.AgentsEnded(attempt=self.attempt.number, generation=self._generation)
        elif isinstance(command, do.Send):
            yield from self._carried_out(command)

    def _carried_out(self, command: do.Send) -> Iterator[Input]:
        if command.order in (Order.RELEASE_AGENT, Order.FINISH_AGENT):
            yield inputs.AgentsEnded(attempt=command.attempt, generation=self._generation)
        elif command.order is Order.KILL:
            for node in command.nodes:
                member = self.state.members.table.get(node)
                is_reached = member is not None and (not member.is_lost or member.phase is Phase.RETURNING)
                if node not in self.dead and is_reached:
                    yield inputs.WorkersKilled(node=node, attempt=command.attempt, step=self.step)
