"""Everything of one simulated run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from launcher import core
from launcher.core.inputs import HaltAsked
from launcher.core.replay import History, replay
from launcher.core.state import State
from launcher.supervisor.own_checkpoints import LOOK_S
from simulation.agents import AgentGroup
from simulation.boosters import BoosterJob, Boosters
from simulation.clock import EPOCH_S, Clock
from simulation.driver import Driver
from simulation.folder import Folder
from simulation.host import Host
from simulation.injection import INJECT
from simulation.invariants import Invariants
from simulation.network import Link, Network
from simulation.runner import Runner
from simulation.schedule import KINDS, Fault, Schedule
from simulation.slurm import Slurm
from simulation.standby import Standby
from simulation.trace import Trace
from simulation.training import Training
from simulation.violation import Violation

Decide = Callable[..., Any]


class World:
    """One run of one schedule. Make it, then call run().

    Args:
        schedule: what happens.
        decide, begin: the core, or one that is broken on purpose.
        trace: takes what happens, for people.
        checks: whether every decision is checked; that costs much where there are thousands of nodes.
        pace: factor of all delays of processes, Slurm and files. 1 is a busy machine.
        first_step_s: what the script takes longer until its first step.
        clock: of several runs that share a cluster.
        make_booster: makes what stands for a booster.
    """

    def __init__(
        self,
        schedule: Schedule,
        *,
        decide: Decide | None = None,
        begin: Decide | None = None,
        trace: Trace | None = None,
        checks: bool = True,
        pace: float = 1.0,
        first_step_s: float = 0.0,
        clock: Clock | None = None,
        make_booster: Callable[..., BoosterJob] = BoosterJob,
    ) -> None:
        self.schedule = schedule
        self.setup = setup = schedule.setup
        self.decide = decide or core.decide
        self.begin = begin or core.begin
        self.trace = trace
        self.checks = checks
        self.pace, self.first_step_s = pace, first_step_s
        self.clock = clock or Clock()
        self.rng = random.Random(setup.seed * 7919 + 1)
        self.network = Network()
        self.hosts: dict[str, Host] = {}
        for index in range(setup.nodes + setup.spares + setup.extra + setup.boosters * setup.booster_nodes):
            self.hosts[f"n{index}"] = Host(self, f"n{index}")
        self.folder = Folder(self)
        self.slurm = Slurm(self)
        self.boosters = Boosters(self, make_booster)
        self.links: list[Link] = []
        self.drivers: list[Driver] = []
        self.standbys: list[Standby] = []
        self.trainings: dict[int, Training] = {}
        self.agents: dict[tuple[int, int], AgentGroup] = {}
        self.invariants = Invariants(self)
        self.job_nodes: tuple[str, ...] = ()
        self.kinds: set[str] = set()
        self.touched: dict[str, set[str]] = {}
        self.agents_late_s = self.agent_lingers_s = 0.0
        self.are_launchers_blind = False  # to the end of the agents
        self.is_dump_silent = self.is_environment_broken = self.are_agents_refused = False
        self.shared_step = self.own_step = 0
        self.own_file = ("", 0.0)  # the newest of the script's own checkpoints, and its time
        self.outcome: tuple[str, str] | None = None
        self.halt: HaltAsked | None = None
        self.injected: list[str] = []
        self.rungs: Counter[str] = Counter()
        self.decisions = self.lost_steps = 0
        self.worst_recovery_s = 0.0
        self._stops: set[int] = set()
        self._due = 0  # faults, and ends of faults, that are still to come
        self._counts: Counter[str] = Counter()
        self._triggers: dict[str, list[Fault]] = {}

    def run(self) -> tuple[str, str]:
        """Runs to the end; the outcome and its reason.

        Raises:
            Violation: something was not true that must be.
        """
        self.start()
        how = self.clock.run(self._bound_s(), self._is_over)
        if how == "over" and self.setup.runs_again and self.folder.result not in (None, ("done", "")):
            self.invariants.finished()
            self._run_again()
            how = self.clock.run(self.clock.now + self._bound_s(), self._is_over)
        if how != "over" and self._is_orphaned:
            return ("orphaned", "its batch host was lost before any runner was there")
        if how == "idle":
            raise Violation("liveness", "nothing is due any more, and the job has no outcome")
        if how == "late":
            raise Violation("liveness", f"no outcome after {self.clock.now:.0f} s")
        self.invariants.finished()
        assert self.outcome is not None
        return self.outcome

    def start(self) -> None:
        """Lets Slurm start the job, and has the faults come."""
        setup = self.setup
        for fault in self.schedule.faults:
            if fault.after:
                self._triggers.setdefault(fault.after, []).append(fault)
            else:
                self._due += 1
                self.clock.at(fault.at_s, self._inject, fault)
        self.slurm.start_job(tuple(self.hosts)[: setup.nodes + setup.spares])

    def _run_again(self) -> None:
        """A user submits the job again in its folder."""
        self.outcome = self.folder.result = self.halt = None
        self.invariants.runs_again()
        self.slurm.submit_again()

    def _bound_s(self) -> float:
        setup, faults = self.setup, self.schedule.faults
        length_s = 300.0 + setup.chunks * setup.chunk_s * 2
        if setup.limit_s:
            length_s *= 6
        if setup.is_slow:
            length_s += 2000.0
        return (
            length_s
            + sum(4000.0 + 2 * fault.lasts_s for fault in faults)
            + (20000.0 if any(fault.kind in ("workers_hang", "workers_pause") for fault in faults) else 0.0)
        )

    @property
    def _is_orphaned(self) -> bool:
        """Whether the batch host was lost before a runner could take over: until its time limit nobody ends the job."""
        script = self.slurm.script
        is_lost = script is not None and not script.is_alive
        return is_lost and not self.drivers and all(host.runner is None for host in self.hosts.values())

    def _is_over(self) -> bool:
        return self.outcome is not None and self.slurm.state == "over"

    # Time and chance.

    def delay(self, least_s: float, most_s: float) -> float:
        return (least_s + (most_s - least_s) * self.rng.random()) * self.pace

    # Faults.

    def _inject(self, fault: Fault) -> None:
        self._due -= 1
        if self.slurm.state == "over":
            return
        of_boosters = (host.name for job in self.boosters.running() for host in job.hosts)
        names = (*self.job_nodes, *of_boosters)
        node = self.hosts[names[fault.node % len(names)]]
        self.kinds.add(fault.kind)
        self.injected.append(fault.kind)
        self.touched.setdefault(node.name, set()).add(fault.kind)
        if self.trace is not None:
            self.trace.fault(self.clock.now, fault, node.name)
        if KINDS[fault.kind][1]:
            self._due += 1
            self.clock.after(fault.lasts_s, self._heal, fault, INJECT[fault.kind](self, fault, node))
        else:
            INJECT[fault.kind](self, fault, node)

    def _heal(self, fault: Fault, heal: Callable[[], None] | None) -> None:
        self._due -= 1
        if heal is not None:
            if self.trace is not None:
                self.trace.note(self.clock.now, f"end of {fault.kind}")
            heal()
        self.changed()
        self.slurm.try_to_start()

    def _count(self, name: str) -> None:
        self._counts[name] = count = self._counts[name] + 1
        waiting = self._triggers.get(name)
        if waiting:
            for fault in [fault for fault in waiting if fault.nth == count]:
                waiting.remove(fault)
                self._due += 1
                self.clock.after(fault.at_s, self._inject, fault)

    def _count_moments(self, before: State, after: State) -> None:
        """A stage of the job, or a phase of its attempt, begins."""
        if after.stage is not before.stage:
            self._count(after.stage.value)
        of, now = before.attempt, after.attempt
        if now is not None and (of is None or now.phase is not of.phase):
            self._count(now.phase.value)

    @property
    def is_anything_due(self) -> bool:
        return self._due > 0

    # What others report.

    def supervise(self, host: Host, **how: Any) -> Driver:
        """Starts a supervisor."""
        return Driver(self, host, **how)

    def job_begins(self, nodes: tuple[str, ...]) -> None:
        self.job_nodes = nodes
        for name, host in self.hosts.items():
            host.is_allocated = name in nodes or bool(host.allocation)
        if self.trace is not None:
            self.trace.note(self.clock.now, f"Slurm starts the job on {','.join(nodes)}")

    def supervisor_begins(self, driver: Driver, todo: Any) -> None:
        if self.trace is not None:
            self.trace.supervisor(self.clock.now, driver, todo)
        if self.checks:
            self.invariants.began(driver, todo)
        for command in todo:
            self._count(type(command).__name__)
        if self.halt is not None:
            self.clock.after(0.5, driver.put, self.halt)

    def decided(self, driver: Driver, before: Any, message: Any, todo: Any) -> None:
        self.decisions += 1
        if self.trace is not None:
            self.trace.decision(self.clock.now, driver, message, todo)
        if self._triggers:
            self._count(type(message).__name__)
            for command in todo:
                self._count(type(command).__name__)
            self._count_moments(before, driver.state)
        self.invariants.decided(driver, message, todo)

    def ends(self, outcome: str, reason: str) -> None:
        if self.outcome is None:
            self.outcome = (outcome, reason)
            if self.trace is not None:
                self.trace.note(self.clock.now, f"the job ends as {outcome}: {reason}")

    def slurm_ends(self, why: str) -> None:
        """The scheduler has ended the job, and nothing starts it again."""
        if self.trace is not None:
            self.trace.note(self.clock.now, f"Slurm has ended the job ({why})")
        if self.folder.result is None:
            self.ends(f"slurm_{why}", "no result was written")

    def count_rung(self, rung: str) -> None:
        self.rungs[rung] += 1

    # The world.

    def changed(self, runner: Runner | None = None) -> None:
        """Something that others see has changed: of this runner, where one is given."""
        is_alone = runner is not None and not self.checks  # among thousands nobody else is looked at
        for link in list(self.links):
            if not is_alone or link.runner is runner:
                link.update()
        self.poke(of_one=is_alone)

    def poke(self, *, of_one: bool = False) -> None:
        """Whoever waits for something looks again; but for other runners, where one runner has gone."""
        for driver in list(self.drivers):
            driver.noted_freeze()
        self.folder.update_lease()
        if not of_one:
            for host in self.hosts.values():
                if host.runner is not None:
                    host.runner.look_soon()
        for standby in list(self.standbys):
            standby.look()
        if self.slurm.script is not None:
            self.slurm.script.look()
        for training in self.trainings.values():
            if not training.is_over:
                training.changed()

    def ruling(self) -> Driver | None:
        holders = self.folder.holders
        return holders[-1] if holders and holders[-1].is_alive else None

    def replayed(self) -> History:
        return replay(self.folder.events, History(has_checkpoint=self.setup.has_checkpoint))

    def runner_of(self, name: str, attempt: int) -> Runner | None:
        """The node's runner, if it has the attempt."""
        runner = self.hosts[name].runner
        return runner if runner is not None and runner.attempt == attempt else None

    # Training.

    def training_of(self, number: int, term: int, nodes: tuple[str, ...], *, has_agents: bool) -> Training:
        """The workers of an attempt, begun when the first node's run."""
        training = self.trainings.get(number)
        if training is None or training.term != term:
            self.trainings[number] = training = Training(self, number, term, nodes, has_agents=has_agents)
            if number in self._stops:
                training.stop()
        return training

    def stop_training(self, number: int) -> None:
        self._stops.add(number)
        training = self.trainings.get(number)
        if training is not None:
            training.stop()

    def are_agents_up(self, number: int) -> bool:
        return any(group.is_up for (of, _), group in self.agents.items() if of == number)

    def fail_peers(self, training: Training, failed: Runner) -> None:
        """Workers of other nodes fail as well, some of them, sooner or later."""
        for name in training.nodes:
            runner = self.hosts[name].runner
            if runner is not None and runner is not failed and runner.training is training and self.rng.random() < 0.6:
                self.clock.after(self.delay(0.0, 1.0), self._fail_secondary, runner, training)

    def _fail_secondary(self, runner: Runner, training: Training) -> None:
        if runner.training is training:
            runner.fail_workers("secondary")

    def progressed(self) -> None:
        if self.trace is not None:
            steps = {number: training.step for number, training in self.trainings.items() if not training.is_over}
            self.trace.note(self.clock.now, f"training at {steps}")

    def own_saved(self, step: int) -> None:
        """The script writes a checkpoint of its own."""
        if self.setup.names_own:
            self.own_step = max(self.own_step, step)
            self.own_file = (f"own-{step}", EPOCH_S + self.clock.now)
            for driver in self.drivers:
                driver.look_at_own_within(LOOK_S)

    def newest_recoverable(self, nodes: tuple[str, ...]) -> int | None:
        """The newest committed step that these nodes, or the shared tier, can give back; None for none."""
        held: Counter[tuple[int, tuple[str, ...]]] = Counter()
        for name in nodes:
            held.update(self.hosts[name].memory.items())  # a node holds a step only where it belongs to its layout
        found = [step for (step, layout), count in held.items() if count >= len(layout) - losses_survived(layout)]
        return max((self.shared_step, *found)) or None


def losses_survived(layout: tuple[str, ...]) -> int:
    """How many nodes' memory may be lost: the redundancy scheme's promise."""
    return 1 if len(layout) > 1 else 0
