"""What must be true at every step of a run, and at its end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from launcher.core.commands import (
    AdoptAgents,
    AskAllocation,
    EndAllocation,
    EndJob,
    GiveBack,
    Order,
    Record,
    Requeue,
    Send,
    StartWorkers,
)
from launcher.core.hang import FLOOR_S
from launcher.core.inputs import AllocationsSeen, AllocationState, Requeued
from launcher.core.teardown import AGENT_FLUSH_S
from simulation.decision_rules import check_decision
from simulation.event_rules import EventRules
from simulation.journal import Journal
from simulation.successor import Replayed
from simulation.time_rules import Times
from simulation.training import CHUNK_STEPS
from simulation.violation import Violation

if TYPE_CHECKING:
    from simulation.agents import AgentGroup
    from simulation.boosters import BoosterJob
    from simulation.driver import Driver
    from simulation.runner import Runner
    from simulation.world import World

CANCEL_S = 60.0
EXPLAINED_S = 1.0  # a SIGTERM, from Slurm to its explanation
FLUSH_S = 500.0
SLOW_S = 60.0  # where processes start slowly, from an attempt's start to its first step
IDLE_S = 60.0  # a booster's way from its start to the next attempt, beside what the job file says
NOTICED_S = 20.0  # two looks at the boosters
_END_LOOKS = 8  # at a booster that was ordered to end: it has KillWait
_MOST_SERVED = 3  # commits of an attempt while others hold something for it
STAYS_S = 60.0  # two looks at what is drained
UNNOTICED_S = 3.5  # that agents are lost
LATE_S = 150.0  # until a booster without runners, or with a broken node, is given back
_SPIN = 200  # decisions in one instant

# What must have happened for a node to be out with such a reason: to that node, or anywhere.
_DISTURBS_ANY = frozenset((
    "links_break", "partition", "slow_network", "supervisor_freezes", "supervisor_node_freezes", "supervisor_killed",
    "supervisor_node_crashes", "node_cut", "node_freezes", "timer_late", "batch_script_killed", "folder_hangs",
    "folder_unseen", "folder_full", "requeue_by_admin", "preempted", "cancel", "srun_dies", "node_crashes",
    "slurm_cuts", "slurmd_dies", "booster_killed", "booster_ends",
))  # fmt: skip
_LOSES = frozenset((
    "runner_killed", "node_crashes", "node_freezes", "link_breaks", "node_cut", "slurm_cuts", "slurmd_dies",
    "runner_broken", "slow_kill", "runners_cancelled",
))  # fmt: skip
_SLOWS_ANY = frozenset(("partition", "slow_network", "links_break", "node_cut", "supervisor_node_freezes"))
_TRUE: tuple[tuple[re.Pattern[str], frozenset[str], frozenset[str]], ...] = tuple(
    (re.compile(pattern), frozenset(node), frozenset(anywhere))
    for pattern, node, anywhere in (
        ("^silent for|connection to its runner closed|connection broke|did not come back|lost with the supervisor",
         _LOSES, _DISTURBS_ANY),
        ("did not confirm the end", {"slow_kill", *_LOSES}, _SLOWS_ANY),
        ("do not end", {"slow_kill"}, ()),
        ("did not report within|runner did not start",
         {"preflight_fails", *_LOSES}, {*_DISTURBS_ANY, "slurm_silent", "slurm_slow", "slurm_lies", "srun_dies"}),
        ("slurmd does not answer|srun could start no process|Slurm finds it", _LOSES | {"srun_dies"}, _DISTURBS_ANY),
        ("torch not loaded", {"slow_start"}, ()),
        ("GPU has fallen", {"preflight_fails"}, ()),
        ("cannot start workers", {"runner_broken"}, ()),
        ("drained by root|gpu_ecc", {"node_drained"}, ()),
    )
)  # fmt: skip
# Faults that do not change whether the stacks of workers that hang are seen.
_HARMLESS = frozenset((
    "workers_hang", "time_warned", "halt", "requeue_refused", "slurm_lies", "slurm_slow", "slurm_silent", "folder_full",
    "agent_dies", "folder_hangs", "slow_kill", "slow_start", "worker_fails", "requeue_by_admin", "preempted",
))  # fmt: skip
# Faults that let every wait end as soon as it can, and those of them that leave all nodes to the job.
_QUICK = frozenset((
    "worker_fails", "runner_killed", "node_crashes", "agent_dies", "link_breaks", "preflight_fails", "cancel", "halt",
    "agents_refused", "fabric_missed", "workers_hang", "workers_pause", "runner_broken", "time_warned", "scale",
    "booster_preempted", "booster_ends", "booster_killed", "boosters_start", "boosters_wait", "boosters_late",
    "boosters_fail", "stranger_joins", "clock_skewed", "worker_ends_early", "slurmd_dies", "requeue_by_admin",
    "preempted", "slurm_cuts", "sbatch_late", "runners_cancelled",
))  # fmt: skip
_KEEPS_NODES = frozenset((
    "worker_fails", "agent_dies", "workers_hang", "workers_pause", "cancel", "halt", "time_warned", "fabric_missed",
    "agents_refused", "clock_skewed", "worker_ends_early",
))  # fmt: skip
_KEEPS_RANKS = frozenset((
    "workers_hang", "workers_pause", "worker_ends_early", "booster_ends", "node_crashes", "slurmd_dies",
))  # fmt: skip
_STOPS = frozenset(("halt", "preempted", "requeue_by_admin", "time_warned"))
# After these nobody may be left to end boosters; then their scripts find that the base job has ended.
_HIDES_BOOSTERS = frozenset((
    "slurm_silent", "supervisor_killed", "supervisor_freezes", "supervisor_node_freezes", "supervisor_node_crashes",
    "batch_script_killed", "node_crashes", "node_freezes", "folder_hangs", "folder_full", "folder_unseen", "cancel",
    "folder_removed", "partition", "node_cut", "preempted", "requeue_by_admin", "slurm_cuts",
))  # fmt: skip
_HARMLESS_TO_BOOSTERS = frozenset((
    "booster_preempted", "booster_ends", "booster_killed", "boosters_wait", "boosters_start", "stranger_joins",
    "boosters_late", "boosters_fail", "sbatch_late", "scale",
))  # fmt: skip
_OF_A_NODE = frozenset(("node_freezes", "node_crashes", "link_breaks", "runner_killed"))
_DRAMATIC = ("user_error", "no_progress", "too_few_nodes", "internal", "fabric", "unrestorable", "not_retried")


def world_is_elastic(world: World) -> bool:
    return world.setup.boosters > 0


class Invariants:
    """Looks at one run."""

    __slots__ = (
        "_attempts", "_cancel_s", "_changed_s", "_committed", "_dismissed", "_ended", "_fault_s", "_instant",
        "_journals", "_obeyed_terms", "_out_at", "_overdue", "_replayed", "_requeued", "_rules", "_served",
        "_spins", "_stays_s", "_times", "_to_kill", "_trains", "_unusable", "_world", "_written_s",
    )  # fmt: skip

    def __init__(self, world: World) -> None:
        self._world = world
        setup = world.setup
        most = setup.max_without_progress + setup.nodes + setup.spares  # each node may be replaced as a suspect
        self._rules = EventRules(setup.sizes, most if setup.has_checkpoint and not setup.names_own else None)
        self._attempts: dict[int, int] = {}  # number -> the term that started it
        self._committed: list[tuple[int, tuple[str, ...]]] = []
        self._dismissed: set[str] = set()  # nodes told to remove their memory, before a run of the job ended
        self._written_s = 0.0
        self._fault_s: float | None = None
        self._ended: set[int] = set()  # terms
        self._requeued: set[int] = set()
        self._cancel_s: dict[int, float] = {}
        self._obeyed_terms: dict[int, Any] = {}
        self._instant = 0.0
        self._changed_s = 0.0  # when another size was asked for, or an attempt began
        self._journals: dict[int, Journal] = {}  # of each term
        self._times: dict[int, Times] = {}
        self._replayed: dict[int, Replayed] = {}
        self._trains: frozenset[str] = frozenset()
        self._stays_s: float | None = None  # since when a drained node trains while a spare is free
        self._spins = self._served = 0
        self._unusable: set[str] = set()
        self._overdue: dict[tuple[int, str], int] = {}  # looks at a booster that was to end, by term
        self._to_kill: set[tuple[str, int]] = set()
        self._out_at: dict[int, frozenset[str]] = {}  # nodes that were out, or awaited in vain, as an attempt began

    def began(self, driver: Driver, todo: Any) -> None:
        self._journals[driver.term] = journal = Journal(driver.log, todo)
        self._times[driver.term] = Times()
        self._replayed[driver.term] = replayed = Replayed(self._world.folder.events, self._world.setup)
        replayed.check(driver.state, todo)
        self._check_records(driver, todo)
        if journal.runs and driver.job.has_checkpoint and not any(type(command) is AdoptAgents for command in todo):
            raise Violation("nobody's agents are forgotten", f"term {driver.term} goes on without those that are there")

    def runs_again(self) -> None:
        """The job is submitted again in its folder."""
        self._rules.runs_again()

    def decided(self, driver: Driver, message: Any, todo: Any) -> None:
        if not self._world.checks:
            return
        now_s, journal = self._world.clock.now, self._journals[driver.term]
        if now_s == self._instant:
            self._spins += 1
            if self._spins > _SPIN:
                raise Violation("no spinning", f"{_SPIN} decisions at {now_s:.3f} s")
        else:
            self._instant, self._spins = now_s, 0
        check_decision(journal, message, todo, driver.now_s)
        self._replayed[driver.term].check(driver.state, todo)
        self._check_records(driver, todo)
        self._check_times(driver, journal, message, todo)
        if journal.is_over:
            return
        if type(message) is Requeued and message.error is None:
            self._requeued.add(driver.term)
        for command in todo:
            if type(command) is Send and command.order is Order.KILL:
                self._to_kill.update((node, command.attempt) for node in command.nodes)
            elif type(command) is Requeue:
                if journal.asked[Requeue] and type(message) is not Requeued:
                    raise Violation("at most one requeue per start", "asked again before the answer")
                if driver.term in self._requeued:
                    raise Violation("at most one requeue per start", "asked again after it was granted")
                if driver.term in self._cancel_s:
                    raise Violation("cancel always wins", "a requeue after the cancel")
        was_cancelled = journal.is_cancelled
        journal.take(message, todo)
        is_decided = journal.runs and journal.is_ending and "fault" not in journal.seen  # how the attempt ends
        if journal.is_cancelled and not (was_cancelled or journal.is_closing or is_decided):
            self._cancel_s[driver.term] = now_s
        if any(type(command) is Record and command.event == "attempt_start" for command in todo):
            self._note_out(driver, journal)
        if self._world.setup.boosters:
            self._check_boosters(driver, journal)
            if type(message) is AllocationsSeen:
                self._check_ends(driver, journal, message)
                self._check_use(driver, journal)

    def _check_times(self, driver: Driver, journal: Journal, message: Any, todo: Any) -> None:
        """Nothing waits longer than it must where nothing stands against it."""
        world = self._world
        is_heeded = world.setup.heeds_stop and world.setup.has_checkpoint and not world.kinds & _KEEPS_RANKS
        for what, is_long_with_all, is_long in self._times[driver.term].ended(journal, message, todo, world.clock.now):
            if world.setup.is_slow or world.kinds - _QUICK or ("from stop" in what and not is_heeded):
                continue
            if is_long or (is_long_with_all and not world.kinds - _KEEPS_NODES):
                raise Violation("nothing waits for nothing", what)

    def _check_boosters(self, driver: Driver, journal: Journal) -> None:
        """Not more than are wanted are asked for, or there."""
        known, setup = journal.boosters - journal.leaving, self._world.setup
        missing = sum(node not in journal.there for node in driver.job.nodes)  # a base that lacks nodes asks for more
        if len(known) > setup.boosters + missing + 1:
            raise Violation("as many boosters as are wanted", f"{len(known)} of {setup.boosters}")

    def _check_ends(self, driver: Driver, journal: Journal, seen: AllocationsSeen) -> None:
        """A booster that was ordered to end does, also where the first order was lost."""
        for name in journal.boosters & journal.ended:
            is_there = seen.states.get(name) is not AllocationState.ENDED
            self._overdue[driver.term, name] = self._overdue.get((driver.term, name), 0) + 1 if is_there else 0
            if self._overdue[driver.term, name] > _END_LOOKS:
                raise Violation("an order to end a booster is heard", f"{name} is still there")

    def _check_records(self, driver: Driver, todo: Any) -> None:
        if driver is not self._world.folder.holders[-1]:
            return  # nothing is written
        for command in todo:
            if type(command) is Record and command.event == "node_out":
                self._check_out(command.fields["node"], command.fields.get("reason") or "")
            elif type(command) is Record and command.event == "fault":
                self._check_fault(driver, command.fields)

    def _check_out(self, node: str, reason: str) -> None:
        world = self._world
        for pattern, of_node, anywhere in _TRUE:
            if pattern.search(reason):
                if world.touched.get(node, frozenset()) & of_node or world.kinds & anywhere:
                    return
                raise Violation("out for a true reason", f"{node}: {reason!r}, but nothing of that kind happened")
        raise Violation("out for a true reason", f"{node}: {reason!r} is a reason that nobody knows")

    def _check_fault(self, driver: Driver, fault: Any) -> None:
        if not self._world.kinds and not self._world.setup.limit_s:
            raise Violation("no fault from nowhere", f"{dict(fault)}")
        training = self._world.trainings.get(fault.get("attempt"))
        if fault["kind"] != "hang" or training is None:
            return
        quiet_s, allowed_s = self._world.clock.now - training.alive_s, self._world.setup.hang_timeout_s or FLOOR_S
        if quiet_s < allowed_s:
            raise Violation(
                "no hang while steps are made", f"{quiet_s:.0f} s without a step, {allowed_s:.0f} are allowed"
            )
        if training.hung is not None:
            is_clear = len(training.nodes) > 1 and not self._world.is_dump_silent
            if is_clear and self._world.kinds <= _HARMLESS and fault.get("node") != training.hung:
                raise Violation("a hang names its node", f"{training.hung} hangs, {fault.get('node')} is named")

    def wrote(self, event: dict[str, Any]) -> None:
        """An event stands in the file."""
        if event["time"] < self._written_s:
            raise Violation("events in order of time", f"{event} after {self._written_s}")
        self._written_s = event["time"]
        wrong = self._rules.broken_by(event)
        if wrong is not None:
            raise Violation("the record is true", f"{wrong}: {event}")
        name = event["event"]
        if name == "problem" and "common step boundary" in event["what"]:
            self._check_stop(event)
        if name in ("resize", "holders_released"):
            self._check_agents(event)
        if name in ("attempt_start", "agents_lost", "agents_back", "resize", "stop_requested"):
            self._served, self._stays_s = 0, None
        elif name == "commit" and event["tier"] == "memory":
            self._check_holders()
            self._check_drained()
        if name == "attempt_start":
            self.trains_on(event["nodes"])
            self._world.count_rung(event["rung"])
        elif name == "scale_requested":
            self._changed_s = self._world.clock.now
        elif name == "fault" and self._fault_s is None:
            self._fault_s = self._world.clock.now
        elif name == "first_step" and self._fault_s is not None:
            took_s = self._world.clock.now - self._fault_s
            self._world.worst_recovery_s = max(self._world.worst_recovery_s, took_s)
            self._fault_s = None

    def _check_agents(self, event: dict[str, Any]) -> None:
        """An attempt that is to grow, or to let its holders go, can save."""
        world = self._world
        groups = [group for (number, _), group in world.agents.items() if number == event["attempt"]]
        if world.kinds - _QUICK or not groups or event.get("reason", "more nodes are there") != "more nodes are there":
            return
        if any(group.is_up for group in groups):
            return
        down_s = max((group.down_s for group in groups if group.down_s is not None), default=0.0)
        if world.clock.now - down_s > UNNOTICED_S:
            raise Violation(
                "an attempt that makes way can save", f"{event}, and its agents are gone since {down_s:.0f} s"
            )

    def _check_holders(self) -> None:
        """Nodes that hold what nobody needs any more are let go."""
        driver = self._world.ruling()
        journal = self._journals.get(driver.term) if driver is not None else None
        if journal is None or not journal.there.intersection(journal.holders) or journal.stop is not None:
            return
        self._served += 1
        if self._served >= _MOST_SERVED:
            raise Violation(
                "holders are let go", f"{journal.holders} hold what nobody needs after {self._served} commits"
            )

    def _check_drained(self) -> None:
        """A node that is drained is left while a spare is free."""
        world, driver = self._world, self._world.ruling()
        journal = self._journals.get(driver.term) if driver is not None else None
        is_told = not (world.setup.is_local or world.setup.is_slow or world.setup.boosters)
        if journal is None or journal.stop is not None or world.kinds != {"node_drained"} or not is_told:
            return
        drained = {name for name, host in world.hosts.items() if host.is_drained}
        free = journal.there - drained.union(journal.nodes, journal.out)
        if not free or drained.isdisjoint(journal.nodes):
            self._stays_s = None
        elif self._stays_s is None:
            self._stays_s = world.clock.now
        elif world.clock.now - self._stays_s > STAYS_S:
            raise Violation("a node is left while a spare is free", f"{drained} are drained, and {free} are free")

    def _check_stop(self, event: dict[str, Any]) -> None:
        world = self._world
        training = world.trainings.get(event["attempt"])
        is_quiet = world.kinds <= _STOPS and world.setup.heeds_stop and not world.setup.is_slow
        if is_quiet and training is not None and training.step is not None:
            raise Violation("a stop is at a step boundary", f"{event}, and nothing stood against it")

    def saves_nothing(self, number: int, chunks: int) -> None:
        """Training goes on without agents."""
        world = self._world
        deaths = world.injected.count("agent_dies")
        if (
            chunks * world.setup.chunk_s > 120.0
            and world.kinds <= {"agent_dies", "halt", "worker_fails"}
            and deaths < 4
        ):
            raise Violation("lost agents are replaced", f"attempt {number} saves nothing for {chunks} saves")

    def starts(self, driver: Driver, command: StartWorkers) -> None:
        """A supervisor starts an attempt."""
        by = self._attempts.setdefault(command.attempt, driver.term)
        if by != driver.term:
            raise Violation("one attempt a number", f"attempt {command.attempt} was started in term {by} already")
        journal = self._journals.get(driver.term)
        if journal is None:
            return  # decisions are not checked
        if driver.term in self._cancel_s or journal.is_cancelled or journal.stop is not None:
            raise Violation(
                "no attempt begins as the job is to end", f"attempt {command.attempt} starts: {journal.stop}"
            )
        if driver is not self._world.folder.holders[-1]:
            return
        self._note_out(driver, journal)
        for name, host in self._world.hosts.items():
            runner, link = host.runner, driver.links.links.get(name)
            if runner is None or runner.attempt in (None, command.attempt) or not runner.has_workers:
                continue
            if link is None or link.runner is not runner or name not in journal.there:
                continue
            if name not in command.nodes and (name, runner.attempt) not in self._to_kill:
                raise Violation(
                    "one attempt at a time", f"{name} still has attempt {runner.attempt} as {command.attempt} starts"
                )

    def _note_out(self, driver: Driver, journal: Journal) -> None:
        """Notes which nodes this attempt cannot have, or waited for in vain."""
        gone = {*self._out_at.get(journal.number, ()), *journal.out, *journal.replaced.difference(journal.nodes)}
        gone.update(name for name in self._world.hosts if name not in journal.there)
        self._out_at[journal.number] = frozenset(gone)

    def obeyed(self, runner: Runner, driver: Driver) -> None:
        if driver.term < runner.term:
            raise Violation("one supervisor", f"{runner.host.name} obeys term {driver.term} after {runner.term}")
        if self._obeyed_terms.setdefault(driver.term, driver) is not driver:
            raise Violation("one supervisor", f"two supervisors are obeyed in term {driver.term}")

    def found_unusable(self, nodes: dict[str, str]) -> None:
        self._unusable.update(nodes)

    def kills_agents(self, group: AgentGroup) -> None:
        """A supervisor ends agents: not while they write the result of a job that is done."""
        driver, now_s = group.launcher, self._world.clock.now
        journal = self._journals.get(driver.term) if driver is not None else None
        if (
            journal is None
            or Order.FINISH_AGENT not in journal.orders
            or journal.is_cancelled
            or journal.stop is not None
        ):
            return
        since_s = group.ordered_s if group.released_s is None else group.released_s
        if group.ordered_s is not None and now_s - group.ordered_s > AGENT_FLUSH_S - 1.0:
            return
        is_cut = group.is_up if since_s is None else now_s - since_s < FLUSH_S
        if is_cut:
            raise Violation("the result is written", "agents are killed while they finish their work")

    def committed(self, number: int, step: int, nodes: tuple[str, ...]) -> None:
        """A step that workers which are cut off still commit counts only until the next attempt begins."""
        if number < max(self._attempts, default=number):
            return
        self._committed = [item for item in self._committed if item[0] < step]  # newer ones were given up
        self._committed.append((step, nodes))
        self._dismissed.difference_update(nodes)
        del self._committed[:-8]

    def restored(self, number: int, nodes: tuple[str, ...], step: int | None) -> None:
        """The agents of an attempt go on from a step."""
        from simulation.world import losses_survived

        if not self._committed:
            return
        newest, layout = max(self._committed, key=lambda item: item[0])
        self._world.lost_steps += max(0, newest - (step or 0))
        if (step or 0) >= newest or (len(nodes) < len(layout) and not world_is_elastic(self._world)):
            return
        world = self._world
        out = self._out_at.get(number, frozenset())
        gone = [
            name
            for name in layout
            if name in out
            or name in self._dismissed
            or not world.hosts[name].is_allocated
            or newest not in world.hosts[name].memory
            or not world.hosts[name].is_up
        ]
        if len(gone) <= losses_survived(layout):
            raise Violation(
                "no committed step is given up",
                f"attempt {number} on {nodes} goes on from {step}, {newest} was committed by {layout}, gone: {gone}",
            )
        self._committed = [item for item in self._committed if item[0] <= (step or 0)]

    def asks_allocation(self, driver: Driver, command: AskAllocation) -> None:
        """The request survives this supervisor."""
        recorded = (event for event in self._world.folder.events if event["event"] == "booster_asked")
        if all(event["allocation"] != command.allocation for event in recorded):
            raise Violation("a booster is on disk before it is submitted", f"{command.allocation} is not")

    def ends_allocation(self, driver: Driver, command: EndAllocation) -> None:
        if command.allocation in driver.job.allocations.values():
            raise Violation("the base is never given up", f"{command.allocation} is ended")

    def gives_back(self, driver: Driver, command: GiveBack) -> None:
        journal, node = self._journals.get(driver.term), command.node
        if journal is None:
            return
        if node in (*journal.nodes, *journal.holders) or node not in journal.out or node not in driver.job.nodes:
            raise Violation(
                "a node is given back once nobody needs it", f"{node}, and the attempt is on {journal.nodes}"
            )

    @property
    def newest_step(self) -> int:
        """The newest committed step that was not given up; 0 for none."""
        return max((step for step, _ in self._committed), default=0)

    def ends(self, driver: Driver, command: EndJob) -> None:
        if driver.term in self._ended:
            raise Violation("nothing outlives the job", "EndJob twice")
        self._ended.add(driver.term)
        journal = self._journals.get(driver.term)
        if journal is None:
            return
        self._dismissed.update(node for node, is_lost in journal.out.items() if not is_lost)
        total = self._world.setup.chunks * CHUNK_STEPS
        is_early = "worker_ends_early" in self._world.kinds
        is_told = self._world.setup.has_checkpoint
        if command.outcome == "done" and is_told and command.step != total and not is_early:
            raise Violation("a true outcome", f"done at step {command.step} of {total}")
        cancel_s = self._cancel_s.get(driver.term)
        world = self._world
        if cancel_s is not None:
            if command.outcome != "cancelled" and "folder_removed" not in world.kinds:
                raise Violation("cancel always wins", f"outcome {command.outcome} after the cancel")
            disturbed = world.kinds & {
                "folder_hangs", "folder_full", "folder_unseen", "partition", "supervisor_freezes",
                "supervisor_node_freezes", "node_freezes", "folder_removed", "timer_late", "slurm_slow", "slurm_silent",
            }  # fmt: skip
            if world.clock.now - cancel_s > CANCEL_S and not disturbed:
                raise Violation("cancel always wins", f"{world.clock.now - cancel_s:.0f} s from the cancel to the end")
        elif (
            command.outcome == "cancelled"
            and not world.kinds & {"cancel", "batch_script_killed"}
            and world.slurm.why not in ("timeout", "failed")  # Slurm ends such a job as it ends a cancelled one
        ):
            raise Violation("a true outcome", "cancelled, and nobody asked for that")
        # A later run whose memory was freed trains the same steps again, which may be all that its limit allows.
        is_short = world.setup.runs_again or world.setup.limit_s < world.setup.chunk_s
        of_limits = ("internal", "no_progress") if is_short else ("internal",)
        is_limit = world.setup.limit_s and command.outcome in of_limits
        if command.outcome in _DRAMATIC and not world.kinds and not is_limit:
            raise Violation("a true outcome", f"{command.outcome}: {command.reason}, and no fault was injected")
        if command.outcome == "stopped" and journal.stop is None and driver.term not in self._requeued:
            raise Violation("a true outcome", f"stopped, and neither requeued nor asked: {command.reason}")

    def _check_given_up(self, outcome: str) -> None:
        """A job is given up only for what has happened."""
        world, rules = self._world, self._rules
        setup = world.setup
        # Then the end may stand in no record.
        if world.kinds & {"folder_full", "folder_hangs", "folder_unseen", "folder_removed"}:
            return
        is_plain = (
            setup.has_checkpoint and not setup.names_own and not setup.limit_s and "time_warned" not in world.kinds
        )
        if outcome == "no_progress" and is_plain and rules.fruitless < setup.max_without_progress:
            raise Violation("a true outcome", f"{outcome}, and {rules.fruitless} attempts gained nothing")
        if outcome == "too_few_nodes" and world.kinds == {"runners_cancelled"}:
            raise Violation("runners that are lost are started again", f"{outcome}, and only they were lost")
        if outcome == "user_error" and rules.decisive[-1:] not in (["user_error"], ["environment"], []):
            raise Violation("a true outcome", f"{outcome}, and the last fault is {rules.decisive[-1:]}")
        if outcome == "fabric" and "fabric" not in rules.decisive[-1:]:
            raise Violation("a true outcome", f"{outcome}, and the last fault is {rules.decisive[-1:]}")
        if outcome != "fabric" and "fabric" in rules.decisive and world.kinds == {"fabric_missed"}:
            raise Violation("a true outcome", f"{outcome}, though the fabric that is required is missed")

    def requeues_cancelled(self, since_s: float) -> None:
        """A job that was cancelled is requeued."""
        if since_s > EXPLAINED_S and self._world.kinds <= _QUICK:
            raise Violation("cancel always wins", f"the job is requeued {since_s:.1f} s after it was cancelled")

    def trains_on(self, nodes: list[str]) -> None:
        """An attempt begins."""
        self._changed_s, self._trains = self._world.clock.now, frozenset(nodes)
        for name in nodes:
            job = self._world.boosters.jobs.get(self._world.hosts[name].allocation)
            if job is not None:
                self._check_preempted(job)

    def _check_preempted(self, job: BoosterJob) -> None:
        """Nobody trains on nodes that Slurm takes back, whether or not a runner has heard its SIGTERM."""
        world = self._world
        if job.preempted_s is None or world.kinds - _HARMLESS_TO_BOOSTERS:
            return
        if world.clock.now - job.preempted_s > NOTICED_S:
            since_s = world.clock.now - job.preempted_s
            raise Violation("a preempted booster leaves", f"{job.id} trains {since_s:.0f} s after it was preempted")

    def _check_use(self, driver: Driver, journal: Journal) -> None:
        """A booster that was there for long trains, or was sent away."""
        world = self._world
        if world.kinds - _HARMLESS_TO_BOOSTERS - _OF_A_NODE or world.setup.skips or not world.setup.heeds_stop:
            return
        if world.setup.booster_nodes > 1 and world.kinds & _OF_A_NODE:
            return  # what is left of a booster trains, or waits for its end
        if any(world.touched.get(node, frozenset()) & _OF_A_NODE for node in world.job_nodes):
            return
        patience_s = max(LATE_S, world.setup.settle_s + 4 * world.setup.chunk_s + IDLE_S)
        if world.setup.is_slow:
            patience_s += SLOW_S
        running = world.boosters.running()
        changed_s = max(self._changed_s, *(job.since_s or 0.0 for job in running), 0.0)
        there = driver.job.base_size + sum(len(job.hosts) for job in running)
        most = next((size for size in world.setup.sizes if size <= min(journal.scale or there, there)), 0)
        if world.clock.now - changed_s < patience_s or len(self._trains) >= most:
            return  # a spare of the base may stand in the place of a booster's node
        for job in running:
            if not job.is_told and not {host.name for host in job.hosts} <= self._trains:
                raise Violation("every booster is used, or ended", f"{job.id} is idle since {changed_s:.0f} s")

    def finished(self) -> None:
        """The run is over."""
        world = self._world
        assert world.outcome is not None
        name, reason = world.outcome
        self._check_given_up(name)
        for job in world.boosters.jobs.values():
            if name.startswith("slurm_"):  # the base was killed: their scripts find that out
                break
            if job.state is not AllocationState.ENDED and not job.is_told and not world.kinds & _HIDES_BOOSTERS:
                raise Violation("no booster outlives the job", f"{job.id} is {job.state.value} at the end")
        for driver in world.drivers:
            raise Violation("nothing outlives the job", f"the supervisor of term {driver.term} on {driver.host.name}")
        if not world.kinds and name != "done" and not world.setup.limit_s:
            raise Violation("a true outcome", f"{name} ({reason}), and no fault was injected")
        if name == "slurm_timeout" and not world.kinds:
            raise Violation("a true outcome", "the job ran into its time limit")
        if name == "slurm_over" or name.startswith("slurm_requeue"):
            raise Violation("a true outcome", f"{name}: no result, and no start to come")
