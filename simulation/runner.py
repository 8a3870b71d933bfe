"""A node's runner: obeys the supervisor that rules, reports again to the next one, ends what nobody supervises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.core.commands import Order, Send
from launcher.core.inputs import (
    AgentEnded,
    AgentLost,
    AgentsRejoined,
    Committed,
    FirstStep,
    Lingering,
    NodeBroken,
    NodeIncident,
    NodeWarm,
    Restored,
    StacksTaken,
    StopHandled,
    Terminated,
    WorkersEnded,
    WorkersKilled,
    WorkersStarted,
)
from launcher.core.liveness import SUSPECT_S
from launcher.diagnosis import WorkerFailure
from launcher.diagnosis.hang_facts import RankFacts
from launcher.leadership.succession import MAX_TURN, MEETING_S, STAGGER_S
from launcher.runner.attempt import KILL_TIMEOUT_S, LINGER_S
from launcher.runner.runner import FENCE_S, LEAVE_S, SUPERVISOR_SILENCE_S
from simulation.links import BASE
from simulation.network import CLOSE, HELLO, WELCOME, Link
from simulation.standby import Standby

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.host import Host
    from simulation.training import Training
    from simulation.world import World

_KEPT = (WorkersStarted, FirstStep, AgentLost, AgentEnded, WorkersEnded, Restored, AgentsRejoined, Committed)
# A rank's stack: in a collective; and at fault: elsewhere, stopped, without an answer, or a step behind the others.
_WAITS: dict[str, Any] = {"state": "S", "boundary": 2, "frames": ("all_reduce (/torch/distributed/c10d.py:1)",)}
_HANGS: tuple[dict[str, Any], ...] = (
    _WAITS | {"frames": ("wait (script.py:9)",)},
    _WAITS | {"state": "T"},
    _WAITS | {"frames": ()},
    _WAITS | {"boundary": 1},
)
_TRACE = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: wrong shape'


class Runner:
    """One node's runner.

    Attributes:
        allocation: the one that it was started in.
        attempt: the attempt of which something runs here; None for none.
        training: its workers, together with those of the other nodes; None until they run.
        works: whether the workers run.
        term: the highest term that was obeyed.
        turn: its place in the succession.
        link: the connection to a supervisor.
        alone_s: since when it has had no supervisor; None while it has one.
        released: the attempt whose agent may end, also one that comes up later; None for none.
    """

    __slots__ = (
        "_due_s", "_is_looking", "_is_terminated", "_is_welcome", "_known", "_memo", "_missed_s",
        "_missed_term", "_said_warm", "_standby", "_started_in", "_waiting", "_was_closed", "allocation", "alone_s",
        "attempt", "has_workers", "host", "is_alive", "is_broken", "is_leaving", "is_warm", "link", "newest_seen",
        "released", "step", "term", "training", "turn", "works", "world",
    )  # fmt: skip

    def __init__(self, world: World, host: Host, driver: Driver | None) -> None:
        self.world = world
        self.host = host
        host.runner = self
        self.allocation = host.allocation or BASE
        self.is_alive = True
        self.is_warm = self.is_broken = False
        self.attempt: int | None = None
        self.released: int | None = None
        self.training: Training | None = None
        self.has_workers = self.works = False
        self.step: int | None = None
        self._memo: dict[Any, Any] = {}
        self._started_in = 0
        self.link: Link | None = None
        self._known = driver
        self.term = 0
        self.turn: int | None = None
        self.alone_s: float | None = world.clock.now
        self._missed_s: float | None = None
        self._missed_term = 0
        self.newest_seen = world.folder.newest_term
        self._was_closed = self._is_welcome = self._said_warm = False
        self.is_leaving = self._is_terminated = self._is_looking = False
        self._due_s = 0.0
        self._standby: Standby | None = None
        self._waiting: list[tuple[Link, Any]] = []
        slow = 10.0 if world.setup.is_slow else 1.0
        world.clock.after(world.delay(0.3, 3.0) * slow, self._become_warm)
        world.clock.after(world.delay(0.02, 0.3), self.look)

    @property
    def is_awake(self) -> bool:
        return self.is_alive and not self.host.is_frozen

    # The supervisor.

    def look(self) -> None:
        """Looks for the supervisor that rules."""
        self._is_looking = False
        if not self.is_awake or self.is_leaving:
            return
        self._follow_terms()
        if self.link is None:
            driver = self._known
            if (
                driver is not None
                and driver.is_listening
                and driver.is_awake
                and driver.term >= self.term
                and self.world.network.reaches(self.host, driver.host)
            ):
                self.link = Link(self.world, self, driver)
                self._is_welcome, self._said_warm = False, self.is_warm
                self.link.send_up((HELLO, self.attempt, self.is_warm, self.host.problem, self.allocation))
                self.link.update()
                return
            self._tend()
        elif self.link.silent_down_s is not None:
            self._tend_silence()

    def look_soon(self) -> None:
        """Something has changed in the world."""
        if not self._is_looking and self.is_awake and (self.link is None or self.link.silent_down_s is not None):
            self._is_looking = True
            self.world.clock.after(0.02 + 0.48 * self.world.rng.random(), self.look)

    def hears_changed(self, link: Link) -> None:
        """The supervisor has fallen silent, or is heard again."""
        if link is not self.link:
            return
        if link.silent_down_s is None:
            self._heard()
        else:
            self.world.clock.at(link.silent_down_s + SUSPECT_S + 0.001, self._due)
            self.world.clock.at(link.silent_down_s + SUPERVISOR_SILENCE_S + 0.001, self._due)

    def receive(self, link: Link, message: Any) -> None:
        if not self.is_alive:
            return
        if self.host.is_frozen:
            self._waiting.append((link, message))
            return
        if message == CLOSE:
            if link is self.link:
                self._was_closed = True
                self._lose_link()
        elif link is self.link:
            self._obey(link, message)

    def thawed(self) -> None:
        """The host is not frozen any more."""
        waiting, self._waiting = self._waiting, []
        for link, message in waiting:
            self.world.clock.after(0.001, self.receive, link, message)
        self.look_soon()

    def _lose_link(self) -> None:
        link, self.link = self.link, None
        if link is not None:
            link.close_up()
            self.alone_s = self.world.clock.now
            if self._is_welcome:
                self.turn = link.driver.links.turn(self.host.name) if link.driver.links.turns_known else self.turn
            self.look_soon()
            self._tend()

    def _heard(self) -> None:
        self._missed_s, self._was_closed = None, False
        if self._standby is not None:
            self._standby.dismiss()
            self._standby = None

    def _follow_terms(self) -> None:
        folder = self.world.folder
        if folder.holders and folder.is_seen(self.host):
            if self.newest_seen < folder.newest_term:
                self.newest_seen = folder.newest_term
                if self.alone_s is not None:
                    self.alone_s = self.world.clock.now
            self._known = folder.holders[-1]

    def _due(self) -> None:
        if not self.is_awake or self.is_leaving:
            return
        self._follow_terms()
        if self.link is None:
            self._tend()
        elif self.link.silent_down_s is not None:
            self._tend_silence()

    def _tend_silence(self) -> None:
        """Its connection is there, and nothing comes."""
        now_s = self.world.clock.now
        silent_s = now_s - (self.link.silent_down_s if self.link is not None else now_s)
        if silent_s < SUSPECT_S:
            return
        if silent_s >= SUPERVISOR_SILENCE_S or self.newest_seen > self.term:
            self._lose_link()
        else:
            if self.link is not None and self._is_welcome:
                self.turn = self.link.driver.links.turn(self.host.name)
            self._step_in()

    def _tend(self) -> None:
        """It has no connection: fence, leave, or stand by."""
        now_s = self.world.clock.now
        gone_s = now_s - (self.alone_s if self.alone_s is not None else now_s)
        if gone_s >= FENCE_S - 1e-6 and self.attempt is not None:
            self._end_work()
        leave_s = FENCE_S if self._is_terminated else LEAVE_S
        if gone_s >= leave_s - 1e-6:
            self.is_leaving = True
            if self.allocation == BASE:
                self.world.slurm.abandoned(self.host)
            self.die()
            return
        self._step_in()
        next_s = FENCE_S if gone_s < FENCE_S - 1e-6 else leave_s
        self._wake_at((self.alone_s or now_s) + next_s)

    def _step_in(self) -> None:
        if self.turn is None or (self._standby is not None and self._standby.is_alive):
            return
        now_s = self.world.clock.now
        missed = max(self.term, self.newest_seen)
        if self._missed_s is None or missed != self._missed_term:
            self._missed_s, self._missed_term = now_s, missed
        turn = max(0, self.turn - (missed - self.term))
        due_s = self._missed_s + STAGGER_S * min(turn, MAX_TURN) + (MEETING_S if missed > self.term else 0.0)
        if now_s < due_s - 1e-6:
            self.world.clock.at(due_s, self._due)
            return
        self._missed_s = now_s
        self._standby = Standby(self.world, self, missed, was_closed=self._was_closed and missed == self.term)

    def _wake_at(self, at_s: float) -> None:
        if not (self.world.clock.now < self._due_s <= at_s):
            self._due_s = at_s
            self.world.clock.at(at_s, self._due)

    # What it is asked.

    def _obey(self, link: Link, message: Any) -> None:
        if type(message) is tuple:
            if message[0] == WELCOME:
                self._on_welcome(link, message[1])
            elif message[0] == "leave":
                self._leave(is_forgotten=message[1])
            else:  # start
                self.world.invariants.obeyed(self, link.driver)
                self._start(message[1], message[2], message[3], link.driver.term)
            return
        assert isinstance(message, Send)
        self.world.invariants.obeyed(self, link.driver)
        order, attempt = message.order, message.attempt
        if order is Order.KILL:
            self._kill(attempt)
        elif attempt != self.attempt:
            self._obey_as_holder(order, message)
        elif order is Order.STOP:
            self._stop()
        elif order in (Order.RELEASE_AGENT, Order.FINISH_AGENT):
            self.released = attempt
            if order is Order.FINISH_AGENT and self.works:  # ranks that others wait for in vain
                self.works = False
                if self.training is not None:
                    self.training.changed()
            for group in list(self.host.agents):
                group.release(self.host)
        elif order is Order.RENEW_AGENT:
            for group in list(self.host.agents):
                if group.generation != message.generation:
                    group.lose(self.host)
        elif order is Order.DUMP:
            self._dump(attempt)

    def _obey_as_holder(self, order: Order, message: Send) -> None:
        """Its agent serves an attempt of which nothing else runs here."""
        for group in list(self.host.agents):
            if group.number != message.attempt:
                continue
            if order in (Order.RELEASE_AGENT, Order.FINISH_AGENT):
                group.release(self.host)
            elif order is Order.RENEW_AGENT and group.generation != message.generation:
                group.lose(self.host)

    def _on_welcome(self, link: Link, term: int) -> None:
        if term < self.term:
            self._lose_link()
            return
        self.term, self._is_welcome, self.alone_s = term, True, None
        self._heard()
        if self._is_terminated:
            link.send_up(Terminated(node=self.host.name))
        for message in sorted(self._memo.values(), key=lambda message: isinstance(message, WorkersEnded)):
            link.send_up(message)
        if self.is_warm and not self._said_warm:
            link.send_up(NodeWarm(node=self.host.name))
        if self.is_broken:
            link.send_up(self._broken())
        if self.host.incident is not None:
            link.send_up(NodeIncident(node=self.host.name, reason=self.host.incident))
        if self.training is not None and self.works:
            link.send_up(self.training.progress())

    def _leave(self, *, is_forgotten: bool) -> None:
        self.is_leaving = True
        self._end_work()
        if is_forgotten:
            self.host.memory = {}
        if self._standby is None or not self._standby.supervises:
            self.die()

    def _start(self, nodes: tuple[str, ...], attempt: int, has_agents: bool, term: int) -> None:
        self._end_work(spares=attempt)
        self._memo.clear()
        self.attempt, self.step = attempt, None
        self.has_workers = True
        self._started_in = term
        self._fork(nodes, attempt, has_agents)

    def _fork(self, nodes: tuple[str, ...], attempt: int, has_agents: bool) -> None:
        """The warm process forks the workers as soon as it is warm."""
        if not self.is_alive or self.attempt != attempt or self.is_broken:
            return
        if not self.is_warm:
            self.world.clock.after(1.0 if not self.host.never_warm else 20.0, self._fork, nodes, attempt, has_agents)
            return
        delay_s = self.world.delay(0.1, 0.6) + self.host.start_s
        self.world.clock.after(delay_s, self._started, nodes, attempt, has_agents)

    def _started(self, nodes: tuple[str, ...], attempt: int, has_agents: bool) -> None:
        if not self.is_awake or self.attempt != attempt:
            if self.is_alive and self.attempt == attempt:
                self.world.clock.after(1.0, self._started, nodes, attempt, has_agents)
            return
        self.works = True
        self.report(WorkersStarted(node=self.host.name, attempt=attempt))
        self.training = training = self.world.training_of(attempt, self._started_in, nodes, has_agents=has_agents)
        training.join(self)
        if self._is_terminated:
            training.stop()

    def _stop(self) -> None:
        if self.attempt is not None:
            self.world.stop_training(self.attempt)
        training = self.training
        if training is not None and not training.has_agents and self.works:
            handles = self.world.setup.heeds_stop
            self.report(StopHandled(node=self.host.name, attempt=training.number, has_handler=handles))
            if handles:
                self.world.clock.after(self.world.delay(0.1, 3.0), self._exit, training)

    def _exit(self, training: Training) -> None:
        """The workers have handled SIGTERM."""
        if self.training is training and self.works and self.is_awake:
            ended = WorkersEnded(node=self.host.name, attempt=training.number, ok=True, is_stopped=True)
            self.workers_end(ended)

    def _kill(self, attempt: int) -> None:
        if attempt != self.attempt:
            for group in list(self.host.agents):
                if group.number == attempt:
                    group.lose(self.host)
            self.report(WorkersKilled(node=self.host.name, attempt=attempt))
            return
        delay_s = self.world.delay(0.02, 0.2) + self.host.kill_s
        if not self.host.is_unkillable and delay_s > KILL_TIMEOUT_S:
            self.world.clock.after(KILL_TIMEOUT_S, self._lingers, attempt)
            delay_s = min(delay_s, KILL_TIMEOUT_S + LINGER_S)
        self.world.clock.after(4.0 if self.host.is_unkillable else delay_s, self._killed, attempt)

    def _lingers(self, attempt: int) -> None:
        if self.is_alive and self.is_awake:
            held = "killed processes [4711] have not ended yet"
            self.report(Lingering(node=self.host.name, attempt=attempt, held=held, wait_s=LINGER_S))

    def _killed(self, attempt: int) -> None:
        if not self.is_alive:
            return
        if not self.is_awake:
            self.world.clock.after(0.5, self._killed, attempt)
            return
        step = None
        if self.attempt == attempt:
            step = self.training.told_step if self.training is not None else None
            self._end_work()
        left = (4711,) if self.host.is_unkillable else ()
        self.report(WorkersKilled(node=self.host.name, attempt=attempt, step=step, left=left))

    def _dump(self, attempt: int) -> None:
        training = self.training
        hung = training.hung if training is not None else None
        if training is not None and training.pause_kind == "looked_at":
            training.resume()
        if hung == self.host.name and self.world.is_dump_silent:
            return
        look = _HANGS[(self.world.setup.seed + attempt) % len(_HANGS)] if hung == self.host.name else _WAITS
        rank = training.nodes.index(self.host.name) if training is not None else 0
        stack = RankFacts(rank=rank, node=self.host.name, **look)
        taken = StacksTaken(node=self.host.name, attempt=attempt, stacks=(stack,))
        self.world.clock.after(self.world.delay(0.1, 3.0), self.report, taken)

    # What it reports.

    def report(self, message: Any) -> None:
        """Sends a report, and keeps it for the next supervisor where that needs it."""
        if not self.is_alive:
            return
        if isinstance(message, _KEPT) and message.attempt == self.attempt:
            key = (type(message), message.tier) if isinstance(message, Committed) else type(message)
            self._memo[key] = message
        if self.link is not None and self._is_welcome:
            self.link.send_up(message)

    def workers_end(self, ended: WorkersEnded) -> None:
        self.works = False
        self.report(ended)
        if self.training is not None:
            self.report(self.training.progress())

    def fail_workers(self, how: str) -> None:
        """One of the workers here ends badly, and in some cases those elsewhere because of it."""
        training = self.training
        if not self.works or training is None or not self.is_awake:
            return
        name = self.host.name
        failure = WorkerFailure(
            node=name,
            rank=training.nodes.index(name),
            exit_code=-9 if how == "signal" else 1,
            time_s=self.world.clock.now + self.host.skew_s,
            error={"user": "ValueError: wrong shape", "secondary": "ConnectionError: peer closed"}.get(how),
            traceback=_TRACE if how == "user" else None,
        )
        failures = () if how == "silent" else (failure,)
        reason = "its torchrun agent failed" if how == "silent" else ""
        ended = WorkersEnded(
            node=name, attempt=training.number, ok=False, failures=failures, reason=reason, step=training.told_step
        )
        self.workers_end(ended)
        if how != "secondary":
            self.world.fail_peers(training, self)

    def breaks(self, *, is_environment: bool) -> None:
        """It cannot start workers any more."""
        if self.is_alive and not self.is_broken:
            self.is_broken = True
            self.world.is_environment_broken = is_environment
            self.report(self._broken())

    def terminate(self) -> None:
        """A SIGTERM from Slurm. Each is reported: another one may have another cause."""
        if not self.is_alive:
            return
        self._is_terminated = True
        if self.link is not None and self._is_welcome:
            self.link.send_up(Terminated(node=self.host.name))
        else:
            self._stop()
            self.look_soon()

    def die(self) -> None:
        """The process is gone; its kernel, where it lives, closes its connection."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._end_work()
        if self.host.runner is self:
            self.host.runner = None
        if self._standby is not None:
            self._standby.die()
        if self.link is not None and self.host.is_up:
            self.link.close_up()
        if self.allocation != BASE:
            self.world.boosters.runner_left(self.host)
        self.world.changed(self)

    def _end_work(self, spares: int | None = None) -> None:
        """Ends the workers and the node's agents, but for those of an attempt."""
        self.attempt, self.training = None, None
        self.has_workers = self.works = False
        for group in list(self.host.agents):
            if group.number != spares:
                group.lose(self.host)

    def _become_warm(self) -> None:
        if not self.is_alive or self.is_broken or self.host.never_warm:
            return
        if self.host.is_frozen:
            self.world.clock.after(1.0, self._become_warm)
            return
        self.is_warm = True
        if self.link is not None and self._is_welcome:
            self.link.send_up(NodeWarm(node=self.host.name))

    def _broken(self) -> NodeBroken:
        reason = "cannot start workers"
        return NodeBroken(node=self.host.name, reason=reason, is_environment=self.world.is_environment_broken)
