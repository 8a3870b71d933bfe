"""The checkpoint agents of one attempt and generation: one MPI world, started by a launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.core.commands import StartAgents
from launcher.core.inputs import AgentEnded, AgentLost, AgentsEnded, AgentsRejoined, Reported, Restored

if TYPE_CHECKING:
    from simulation.driver import Driver
    from simulation.host import Host
    from simulation.runner import Runner
    from simulation.world import World


MOST_PROBLEMS = 16  # agents that report a loss as a problem: none of thousands tells more than another


class AgentGroup:
    """Agents of one generation.

    Attributes:
        is_up: whether all have come up and found each other.
        is_over: whether none is left.
        nodes, everywhere: those that train; the holders too.
        ordered_s: since when the supervisor lets them end; None before that.
        released_s: since when all of them may end.
        down_s: since when they are gone.
        launcher: the supervisor whose process waits for them; None where none does.
    """

    __slots__ = (
        "_hosts", "_released", "down_s", "everywhere", "generation", "is_over", "is_up", "launcher", "nodes", "number",
        "ordered_s", "released_s", "world",
    )  # fmt: skip

    def __init__(self, world: World, driver: Driver, command: StartAgents) -> None:
        self.world = world
        self.nodes = command.nodes
        self.everywhere = (*command.nodes, *command.holders)
        self.number = number = command.attempt
        self.generation = generation = command.generation
        self.launcher: Driver | None = driver
        self.is_up = self.is_over = False
        self._hosts: dict[str, Host] = {}
        self._released: set[str] = set()
        self.ordered_s: float | None = None
        self.released_s: float | None = None
        self.down_s: float | None = None
        world.agents[number, generation] = self
        slow = 10.0 if world.setup.is_slow else 1.0
        world.clock.after(world.delay(0.1, 0.4) * slow + world.agents_late_s, self._launch)

    def _launch(self) -> None:
        world = self.world
        if self.is_over or self.launcher is None:
            self.is_over = True
            return
        if world.are_agents_refused:
            self._end("no process can be started")
            return
        if not world.slurm.is_answering:
            world.clock.after(world.delay(5, 20), self._fail)
            return
        for name in self.everywhere:
            host = world.hosts[name]
            if host.can_be_given_processes:
                self._hosts[name] = host
                host.agents.append(self)
        if len(self._hosts) < len(self.everywhere):
            world.slurm.not_launched.update(name for name in self.everywhere if name not in self._hosts)
            world.clock.after(world.delay(0.5, 25), self._fail)
        else:
            world.clock.after(world.delay(0.2, 1.0) * (10.0 if world.setup.is_slow else 1.0), self._meet)

    def _meet(self) -> None:
        """They have found each other, and know what each node holds."""
        world = self.world
        if self.is_over or len(self._hosts) < len(self.everywhere):
            return
        first = self._hosts[self.nodes[0]]
        if any(host.is_frozen or not world.network.reaches(first, host) for host in self._hosts.values()):
            world.clock.after(60.0, self._fail)
            return
        runners = [world.runner_of(name, self.number) for name in self.nodes]
        training = world.trainings.get(self.number)
        if training is None or None in runners:
            world.clock.after(0.5, self._meet)
            return
        self.is_up = True
        step = world.newest_recoverable(self.everywhere)
        if training.start_step is None:
            world.invariants.restored(self.number, self.everywhere, step)
        for runner in runners[: world.setup.reports]:
            if training.start_step is None:
                runner.report(Restored(attempt=self.number, fields={"step": step, "source": "memory"}))
            elif self.generation:
                runner.report(AgentsRejoined(attempt=self.number, generation=self.generation, step=step))
        training.restore(step or 0)
        for runner in runners:
            if runner.released == self.number:
                self.release(runner.host)

    def lose(self, host: Host) -> None:
        """One of them is gone, and so are all."""
        if self._hosts.pop(host.name, None) is not None:
            self._leave(host)
            runner = self._runner(host.name)
            if runner is not None and host.name in self._released:
                self.world.clock.after(0.0, runner.report, AgentEnded(node=host.name, attempt=self.number))
            if self._hosts and self.released_s is None:
                self.world.clock.after(self.world.delay(0.01, 0.3), self._fail)
            elif not self._hosts:
                self._fail(self.released_s is None)

    def release(self, host: Host) -> None:
        """A node's agent may finish its work; they all end when all may."""
        self._released.add(host.name)
        if self._released.issuperset(self.nodes) and not self.is_over and self.released_s is None:
            self.released_s = self.world.clock.now
            for name in self.everywhere:
                self.world.clock.after(self.world.delay(0.05, 0.6) + self.world.agent_lingers_s, self._finish, name)

    def _finish(self, name: str) -> None:
        host = self._hosts.pop(name, None)
        if host is None:
            return
        self._leave(host)
        runner = self._runner(name)
        if runner is not None:
            runner.report(AgentEnded(node=name, attempt=self.number))
        if not self._hosts:
            self._end()

    def kill(self) -> None:
        """The launcher is ended, and with it the agents that Slurm reaches."""
        if not self.is_over:
            self.world.invariants.kills_agents(self)
            self.world.clock.after(self.world.delay(0.01, 0.2), self._fail, False)

    def let_go(self) -> None:
        self.launcher = None

    def _fail(self, are_missed: bool = True) -> None:
        """All of them end."""
        if self.is_over:
            return
        self.is_up = False
        for name, host in list(self._hosts.items()):
            if host.is_up and not host.is_frozen:
                self._leave(host)
                del self._hosts[name]
        for index, name in enumerate(self.nodes):
            runner = self._runner(name)
            if runner is None:
                continue
            if name in self._released:
                self.world.clock.after(0.0, runner.report, AgentEnded(node=name, attempt=self.number))
            elif are_missed or self.launcher is None:  # a supervisor that ended them and lives needs no report
                if are_missed and index < MOST_PROBLEMS:
                    what = {"what": "another agent does not answer"}
                    missed = Reported(node=name, attempt=self.number, event="problem", fields=what)
                    self.world.clock.after(0.0, runner.report, missed)
                reason = "the checkpoint agent ended"
                lost = AgentLost(node=name, attempt=self.number, generation=self.generation, reason=reason)
                self.world.clock.after(self.world.delay(0.0, 0.1), runner.report, lost)
        self._end()

    def _end(self, reason: str = "") -> None:
        self.is_over, self.is_up = True, False
        self.down_s = self.world.clock.now if self.down_s is None else self.down_s
        if self.launcher is not None and (reason or not self.world.are_launchers_blind):
            ended = AgentsEnded(attempt=self.number, generation=self.generation, reason=reason)
            self.world.clock.after(self.world.delay(0.0, 0.1), self.launcher.put, ended)

    def _leave(self, host: Host) -> None:
        if self in host.agents:
            host.agents.remove(self)

    def _runner(self, name: str) -> Runner | None:
        runner = self.world.runner_of(name, self.number)
        return runner if runner is not None and runner.is_awake else None
