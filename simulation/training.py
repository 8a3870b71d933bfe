"""The workers of one attempt, on all its nodes: they make each step together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.core.inputs import Committed, FirstStep, Progress, WorkersEnded
from simulation.clock import EPOCH_S
from simulation.host import Memory, with_step

if TYPE_CHECKING:
    from simulation.runner import Runner
    from simulation.world import World

CHUNK_STEPS = 10
LIFE_S = 20.0  # between two signs of life in a step that takes long


class Training:
    """One attempt's workers.

    Attributes:
        number: of the attempt.
        term: of the supervisor that started it: where the folder was full, a number may be given twice.
        nodes: in node-rank order.
        has_agents: whether they restore from agents.
        step: the newest finished step.
        start_step: where they began; None before the restore.
        hung: the node whose workers hang; None for none.
        alive_s: when they made a step last; of a script that tells none, when they showed any sign of life.
        pause_kind: how they make a step that takes long; "" where they do not.
    """

    __slots__ = (
        "_is_going", "_is_stopping", "_is_waiting", "_runners", "_unsaved", "alive_s",
        "has_agents", "hung", "is_over", "nodes", "number", "pause_kind",
        "start_step", "step", "term", "world",
    )  # fmt: skip

    def __init__(self, world: World, number: int, term: int, nodes: tuple[str, ...], *, has_agents: bool) -> None:
        self.world = world
        self.number = number
        self.term = term
        self.nodes = nodes
        self.has_agents = has_agents
        self._runners: dict[str, Runner] = {}
        self._is_going = self._is_stopping = self._is_waiting = self.is_over = False
        self._unsaved = 0  # saves in a row that did not come about
        self.start_step: int | None = None
        self.step: int | None = None
        self.hung: str | None = None
        self.pause_kind = ""
        self.alive_s = world.clock.now
        if not has_agents:
            self.start_step = world.own_step

    def join(self, runner: Runner) -> None:
        """A node's workers run."""
        self._runners[runner.host.name] = runner
        self._go()

    def restore(self, step: int) -> None:
        """The agents have agreed from where to go on."""
        if self.start_step is None:
            self.start_step = step
            self._go()

    def stop(self) -> None:
        """One node's workers are asked to stop at a common boundary: all hear of it."""
        if self.has_agents and self.world.setup.heeds_stop and not self._is_stopping:
            self._is_stopping = True
            if self._is_going:
                self.world.clock.after(self.world.delay(0.1, min(3.0, self.world.setup.chunk_s / 5)), self._reach, True)

    def hang(self, node: str) -> None:
        self.hung = self.hung or node  # the first one holds up the others

    def pause(self, kind: str) -> None:
        self.pause_kind = kind
        self._show_life()

    def resume(self) -> None:
        self.pause_kind = ""
        self.changed()

    def _show_life(self) -> None:
        if self.pause_kind == "active" and not self.is_over and self.hung is None:
            self.alive_s = self.alive_s if self.has_agents else self.world.clock.now
            self._tell_progress()
            self.world.clock.after(LIFE_S, self._show_life)

    def changed(self) -> None:
        """Something has changed in the world: may they go on?"""
        if self._is_waiting:
            self._is_waiting = False
            self.world.clock.after(0.05, self._reach, self._is_stopping)

    @property
    def told_step(self) -> int | None:
        """The step as the script tells it; without agents it tells none."""
        return self.step if self.has_agents else None

    @property
    def runs(self) -> bool:
        """Whether the workers of all nodes run, and reach each other."""
        if self.hung is not None or self.pause_kind:
            return False
        reaches, first = self.world.network.reaches, None
        is_whole = not self.world.network.cuts
        for runner in map(self._runners.get, self.nodes):
            if runner is None or runner.training is not self or not runner.works:
                return False
            host = runner.host
            if host.is_frozen or not host.is_up:
                return False
            if first is None:
                first = host
            elif not is_whole and not reaches(first, host):
                return False
        return True

    def _go(self) -> None:
        if self._is_going or self.start_step is None or len(self._runners) < len(self.nodes):
            return
        self._is_going = True
        self.step = self.start_step
        if self.step >= self.world.setup.chunks * CHUNK_STEPS:
            self._end()
            return
        self.world.clock.after(self.world.delay(0.3, 1.5) + self.world.first_step_s, self._first)

    def _first(self) -> None:
        if self.is_over or not self.runs:
            self._is_waiting = not self.is_over
            return
        self.step = (self.step or 0) + 1
        self.alive_s = self.world.clock.now
        self.world.progressed()
        for runner in self._reporting() if self.has_agents else ():
            time_s = EPOCH_S + self.world.clock.now + runner.host.skew_s
            runner.report(FirstStep(node=runner.host.name, attempt=self.number, step=self.step, time_s=time_s))
        self._tell_progress()
        if self._is_stopping:
            self.world.clock.after(0.2, self._reach, True)
        else:
            self.world.clock.after(self.world.setup.chunk_s, self._reach, False)

    def _reach(self, is_stop: bool) -> None:
        """The next boundary: a commit, or the end."""
        if self.is_over or (self._is_stopping and not is_stop):
            return
        if not self.runs:
            self._is_waiting = True
            return
        world = self.world
        step = (self.step or 0) + (1 if is_stop else CHUNK_STEPS - (self.step or 0) % CHUNK_STEPS)
        total = world.setup.chunks * CHUNK_STEPS
        self.step = min(step, total)
        self.alive_s = world.clock.now
        world.progressed()
        world.own_saved(self.step)
        self._tell_progress()
        if self.has_agents and world.are_agents_up(self.number):
            self._commit(self.step)
            self._unsaved = 0
        elif self.has_agents:
            self._unsaved += 1
            world.invariants.saves_nothing(self.number, self._unsaved)
        if is_stop or self.step >= total:
            self._end()
        else:
            world.clock.after(
                world.setup.chunk_s * (1 + world.setup.jitter * (world.rng.random() - 0.5)), self._reach, False
            )

    def _commit(self, step: int) -> None:
        world = self.world
        world.invariants.committed(self.number, step, self.nodes)
        after: dict[tuple[tuple[int, int], ...], Memory] = {}  # most nodes hold the same steps
        for name in self.nodes:
            host = world.hosts[name]
            before = tuple((held, id(nodes)) for held, nodes in host.memory.items())
            if before not in after:
                after[before] = with_step(host.memory, step, self.nodes)
            host.memory = after[before]
        is_shared = (step // CHUNK_STEPS) % world.setup.shared_every == 0
        if is_shared:
            world.shared_step = max(world.shared_step, step)
        for runner in self._reporting():
            runner.report(Committed(attempt=self.number, step=step, tier="memory"))
            if is_shared:
                runner.report(Committed(attempt=self.number, step=step, tier="shared"))

    def _end(self) -> None:
        self.is_over = True
        for name in self.nodes:
            runner = self._runners[name]
            self.world.clock.after(self.world.delay(0.01, 0.4), self._exit, runner)

    def _exit(self, runner: Runner) -> None:
        if runner.training is self and runner.works:
            name, is_stopped = runner.host.name, self._is_stopping
            ended = WorkersEnded(node=name, attempt=self.number, ok=True, step=self.told_step, is_stopped=is_stopped)
            runner.workers_end(ended)

    def _reporting(self) -> list[Runner]:
        count = self.world.setup.reports
        return [self._runners[name] for name in self.nodes[:count] if name in self._runners]

    def _tell_progress(self) -> None:
        """As the driver puts the heartbeats together: it hears one of them here."""
        progress = self.progress()
        for runner in map(self._runners.get, self.nodes):
            if runner is not None and runner.link is not None and runner.is_awake:
                runner.link.send_up(progress)
                return

    def progress(self) -> Progress:
        return Progress(
            attempt=self.number,
            step=self.told_step,
            slowest=self.told_step,
            is_over=self.is_over and self.has_agents,
            is_active=self.hung is None and self.pause_kind in ("", "active"),
            rank_ended=any(not runner.works for runner in self._runners.values()),
        )
