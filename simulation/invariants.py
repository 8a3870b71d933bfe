"""What must be true at every step of a run, and at its end."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from launcher.core.boosters import is_asking
from launcher.core.choice import allowed
from launcher.core.commands import (
    AdoptAgents,
    AskAllocation,
    EndAllocation,
    EndJob,
    GiveBack,
    LetGo,
    Order,
    Record,
    Requeue,
    Send,
    SetTimer,
    StartWorkers,
)
from launcher.core.faults import LOSSES_S
from launcher.core.hang import FLOOR_S
from launcher.core.inputs import (
    AllocationsSeen,
    AllocationState,
    CancelAsked,
    IsolationChanged,
    NodeWarm,
    Reported,
    Requeued,
    ScaleAsked,
    TerminationExplained,
    TimerFired,
)
from launcher.core.liveness import CUT_OFF_S
from launcher.core.members import Phase, is_usable
from launcher.core.replay import History, apply
from launcher.core.stages import TRAINED_GRACE_S
from launcher.core.state import AgentPhase, AttemptPhase, BoosterPhase, Requests, RequeuePhase, Stage, State
from launcher.core.stop_reasons import StopReason
from launcher.core.teardown import AGENT_FLUSH_S
from simulation.decision_rules import DecisionRules
from simulation.event_rules import EventRules
from simulation.probes import Probes
from simulation.successor import differences
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
LEAVING_S = 90.0
SLOW_S = 60.0  # where processes start slowly, from an attempt's start to its first step
IDLE_S = 60.0  # a booster's way from its start to the next attempt, beside what the job file says
NOTICED_S = 20.0  # two looks at the boosters
_END_LOOKS = 8  # at a booster that was ordered to end: it has KillWait
_MOST_SERVED = 3  # commits of an attempt while others hold something for it
_AT_WORK = (
    AttemptPhase.RECORDING, AttemptPhase.RETURNING, AttemptPhase.STARTING, AttemptPhase.TRAINING, AttemptPhase.JUDGING,
)  # fmt: skip
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
_LONGEST_S: dict[Stage | AttemptPhase, float] = {
    Stage.ASKING: CUT_OFF_S + 2.0,  # the supervisor's node may be cut off, as it reaches no other one
    Stage.PROBING: 0.5,
    Stage.DECIDING: 3 * LOSSES_S,  # each loss may be followed by another
    Stage.CONFIRMING: 1.0,
    Stage.CLOSING: 0.5,
    Stage.REQUEUEING: 1.0,
    Stage.BACKING_OFF: 60.5,
    AttemptPhase.RECORDING: 0.5,
    AttemptPhase.RETURNING: 40.0,  # RETURN_S after a runner, 20 s of silence of most nodes, and RETURN_S after that
    AttemptPhase.STARTING: 45.0,  # agents that are late, while most nodes are silent, perhaps twice
    AttemptPhase.JUDGING: 12.5,
    AttemptPhase.FINDING_CAUSE: 0.6,
    AttemptPhase.EXPLAINING: 1.0,
    AttemptPhase.RELEASING: 30.0,  # agents may be coming up
    AttemptPhase.KILLING: 30.0,  # most nodes may be silent
}
_LONGEST_WITH_ALL_S: dict[Stage | AttemptPhase, float] = {
    Stage.ASKING: 1.0,
    Stage.GATHERING: 10.5,
    AttemptPhase.KILLING: 1.0,
}
STOP_S = 15.0  # until all ranks have stopped at a step boundary
_STOPS = frozenset(("halt", "preempted", "requeue_by_admin", "time_warned"))
_BREAKS = frozenset(("link_breaks", "links_break", "worker_fails", "agent_dies", "halt", "time_warned"))
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
        "_asks_requeue",
        "_attempts",
        "_cancel_s",
        "_changed_s",
        "_committed",
        "_decisions",
        "_dismissed",
        "_ended",
        "_fault_s",
        "_history",
        "_instant",
        "_leaving",
        "_obeyed_terms",
        "_out_at",
        "_overdue",
        "_probes",
        "_requeued",
        "_rules",
        "_scaled_s",
        "_served",
        "_since_s",
        "_spins",
        "_to_kill",
        "_trains",
        "_unusable",
        "_world",
        "_written_s",
    )  # fmt: skip

    def __init__(self, world: World) -> None:
        self._world = world
        setup = world.setup
        most = setup.max_without_progress + setup.nodes + setup.spares  # each node may be replaced as a suspect
        self._rules = EventRules(setup.sizes, most if setup.has_checkpoint and not setup.names_own else None)
        self._probes = Probes(world.decide, setup.seed)
        self._attempts: dict[int, int] = {}  # number -> the term that started it
        self._committed: list[tuple[int, tuple[str, ...]]] = []
        self._dismissed: set[str] = set()  # nodes told to remove their memory, before a run of the job ended
        self._history: dict[int, History] = {}  # of each term
        self._written_s = 0.0
        self._fault_s: float | None = None
        self._ended: set[int] = set()  # terms
        self._requeued: set[int] = set()
        self._leaving: dict[str, float] = {}  # since when
        self._asks_requeue: set[int] = set()  # terms
        self._cancel_s: dict[int, float] = {}
        self._obeyed_terms: dict[int, Any] = {}
        self._instant = 0.0
        self._scaled_s = self._changed_s = 0.0  # when another size was asked for, and an attempt began
        self._decisions: dict[int, DecisionRules] = {}  # of each term
        self._since_s: dict[type, float] = {}  # since when the job has been in its stage, its attempt in its phase
        self._trains: frozenset[str] = frozenset()
        self._spins = self._served = 0
        self._unusable: set[str] = set()
        self._overdue: dict[tuple[int, str], int] = {}  # looks at a booster that was to end, by term
        self._to_kill: set[tuple[str, int]] = set()
        self._out_at: dict[int, frozenset[str]] = {}  # nodes that were out, or awaited in vain, as an attempt began

    def began(self, driver: Driver, todo: Any) -> None:
        world = self._world
        self._history[driver.term] = world.replayed()
        self._decisions[driver.term] = DecisionRules(todo)
        self._since_s = dict.fromkeys((Stage, AttemptPhase), world.clock.now)
        self._check_records(driver, todo)
        self._check_members(driver)
        state = driver.state
        if state.requests.stop == StopReason.RESIZE and not state.resize.is_written:
            raise Violation("what was begun is carried on", "the resize of the supervisor before is not")
        if state.stage is Stage.ATTEMPT and state.agents.lost_s is not None:
            running = self._history[driver.term].running_attempt
            if running is not None and not running.agents_lost:
                raise Violation("a successor knows the state", "no agents were lost by the events")
        for node, why in state.history.out.items():
            if node in state.members and state.members[node].is_lost and not (driver.job.is_take_over and why.is_lost):
                raise Violation("a node that is out stays out", f"{node} may come back: {why}")
        names = [event["event"] for event in driver.log]
        if names[-1:] == ["job_end"]:
            self._check_anew(self._history[driver.term])
        goes_on = driver.state.stage is Stage.ATTEMPT and driver.job.has_checkpoint
        if goes_on and not any(type(command) is AdoptAgents for command in todo):
            raise Violation("nobody's agents are forgotten", f"term {driver.term} goes on without those that are there")

    def runs_again(self) -> None:
        """The job is submitted again in its folder."""
        self._rules.runs_again()

    def decided(self, driver: Driver, before: Any, message: Any, todo: Any) -> None:
        if not self._world.checks:
            return
        now_s = self._world.clock.now
        if now_s == self._instant:
            self._spins += 1
            if self._spins > _SPIN:
                raise Violation("no spinning", f"{_SPIN} decisions at {now_s:.3f} s")
        else:
            self._instant, self._spins = now_s, 0
        state = driver.state
        if before.stage is Stage.ENDED and todo:
            raise Violation("nothing outlives the job", f"commands after EndJob: {todo}")
        self._decisions[driver.term].check(before, message, state, todo, driver.now_s)
        if state.members is not before.members:
            self._check_members(driver)
        if state.history is not before.history:
            self._check_records(driver, todo)
        has_begun = state.history.next_attempt != before.history.next_attempt
        if has_begun and state.attempt is not None and driver is self._world.folder.holders[-1]:
            given_up = state.history.gains.suspects - frozenset(state.attempt.nodes)  # attempts failed there repeatedly
            self._out_at[state.attempt.number] = frozenset(state.members.out()) | given_up
        if type(message) is IsolationChanged and before.stage is not Stage.ENDED:
            lets_go = any(type(command) is LetGo for command in todo)
            if lets_go is not message.is_isolated:
                raise Violation("who is cut off lets go", f"{message}: {todo}")
        if type(message) is Requeued:
            self._asks_requeue.discard(driver.term)
            if message.error is None:
                self._requeued.add(driver.term)
        for command in todo:
            kind = type(command)
            if kind is SetTimer:
                if command.at_s is not None and command.at_s < driver.now_s - 100.0:
                    raise Violation("no spinning", f"a timer {driver.now_s - command.at_s:.0f} s in the past")
            elif kind is Record:
                self._check_record(driver, before, command)
            elif kind is Send:
                if command.order is Order.KILL:
                    self._to_kill.update((node, command.attempt) for node in command.nodes)
            elif kind is Requeue:
                if driver.term in self._asks_requeue:
                    raise Violation("at most one requeue per start", "asked again before the answer")
                self._asks_requeue.add(driver.term)
                if driver.term in self._requeued:
                    raise Violation("at most one requeue per start", "asked again after it was granted")
                if driver.term in self._cancel_s:
                    raise Violation("cancel always wins", "a requeue after the cancel")
        if type(message) is CancelAsked or (type(message) is TerminationExplained and message.why == "cancel"):
            is_done = before.attempt is not None and before.attempt.outcome == "done"
            if before.stage not in (Stage.CLOSING, Stage.REQUEUEING, Stage.ENDED) and not is_done:
                self._cancel_s.setdefault(driver.term, now_s)
        self._check_durations(driver, before)
        if type(message) in (Reported, ScaleAsked, NodeWarm):
            self._check_heard(driver, before, message, todo)
        if self._world.setup.boosters:
            self._check_boosters(driver, before)
            if type(message) is AllocationsSeen:
                self._check_ends(driver, message)
                self._check_use(driver)
        if type(message) is TimerFired and state.timer_s is not None and not todo and state == before:
            raise Violation("no lost timer", f"the timer fired, and none is set before {state.timer_s}")
        set_s = next((command.at_s for command in reversed(todo) if type(command) is SetTimer), None)
        is_set = any(type(command) is SetTimer for command in todo)
        expected_s = set_s if is_set else None if type(message) is TimerFired else before.timer_s
        if state.timer_s != expected_s:
            raise Violation("no lost timer", "the state's timer differs from the driver's")
        self._probes.try_one(state, driver.now_s)

    def _check_anew(self, history: History) -> None:
        """A later run in the folder of one that has ended."""
        gains = history.gains
        row = (gains.counted, gains.restarts, dict(gains.repeats), dict(gains.failed_on), gains.error, history.hangs)
        if history.scale is not None or any(row) or history.out:
            raise Violation("a later run begins anew", f"scale {history.scale}, {history.out}, row of failures {row}")

    def _check_durations(self, driver: Driver, before: State) -> None:
        """Nothing waits longer than it must where nothing stands against it."""
        state, world, now_s = driver.state, self._world, self._world.clock.now
        of, now = before.attempt, state.attempt
        ended: list[Stage | AttemptPhase] = []
        if state.stage is not before.stage:
            ended.append(before.stage)
        if now is not None and (of is None or now.phase is not of.phase or now.number != of.number):
            ended += [of.phase] if of is not None else []
            self._since_s[AttemptPhase] = self._since_s[AttemptPhase] if of is not None else now_s
        for each in ended:
            lasted_s = now_s - self._since_s[type(each)]
            self._since_s[type(each)] = now_s
            if world.setup.is_slow or world.kinds - _QUICK:
                continue
            if lasted_s > _LONGEST_S.get(each, lasted_s):
                raise Violation("nothing waits for nothing", f"{each} lasts {lasted_s:.1f} s")
            if not world.kinds - _KEEPS_NODES and lasted_s > _LONGEST_WITH_ALL_S.get(each, lasted_s):
                raise Violation("nothing waits for nothing", f"{each} lasts {lasted_s:.1f} s, and all nodes are there")
            is_stop = each is AttemptPhase.TRAINING and before.requests.stop is not None
            if is_stop and world.setup.heeds_stop and world.setup.has_checkpoint and not world.kinds & _KEEPS_RANKS:
                lasted_s = min(lasted_s, driver.now_s - before.requests.stop_s)
                if lasted_s > STOP_S:
                    raise Violation("nothing waits for nothing", f"ranks stop after {lasted_s:.1f} s")

    def _check_record(self, driver: Driver, before: State, command: Record) -> None:
        """What is decided is decided in time."""
        state, attempt, fields = driver.state, before.attempt, command.fields
        if command.event == "resize" and (attempt is None or attempt.phase not in _AT_WORK):
            raise Violation("an attempt that ends is left alone", f"{dict(fields)} in {attempt and attempt.phase}")
        is_lost = command.event == "stop_requested" and fields["reason"] == StopReason.BATCH_SCRIPT_LOST
        if is_lost and state.requeue is RequeuePhase.NONE and not state.requests.is_cancelled:
            raise Violation("a lost batch script is requeued at once", f"{dict(fields)}")

    def _check_heard(self, driver: Driver, before: State, message: Any, todo: Any) -> None:
        """What is only to be recorded is, and a wish for another size."""
        if before.stage is Stage.ENDED:
            return
        if type(message) is ScaleAsked:
            size = allowed(driver.job, message.nodes)
            if driver.state.history.scale != size:
                raise Violation("what is asked is known", f"{size} nodes: {driver.state.history.scale} are wanted")
            self._scaled_s = self._world.clock.now
            return
        if type(message) is NodeWarm:
            member = before.members.table.get(message.node)
            is_news = member is not None and is_usable(member) and not member.is_warm
            if is_news and not any(type(each) is Record and each.event == "node_ready" for each in todo):
                raise Violation("what nodes report is recorded", f"{message}: {todo}")
            return
        attempt = before.attempt
        if attempt is None or attempt.number != message.attempt or not attempt.is_running:
            return
        if message.node not in before.members:
            return
        makes_way = message.event == "problem" and before.agents.phase is AgentPhase.MAKING_WAY  # they miss each other
        is_recorded = any(type(each) is Record and each.event == message.event for each in todo)
        if is_recorded is makes_way:
            raise Violation("what nodes report is recorded", f"{message}: {todo}")

    def _check_boosters(self, driver: Driver, before: State) -> None:
        """As many as are wanted are there, in the queue, asked for, or about to be."""
        state, setup, now_s = driver.state, self._world.setup, driver.now_s
        known = [each for each in state.boosters if each.phase is not BoosterPhase.LEAVING]
        of_base = [each for each in state.members.table.values() if each.allocation == "job" and is_usable(each)]
        in_place_of_base = max(0, setup.nodes - len(of_base))  # a base that lacks nodes asks for more boosters
        if len(known) > setup.boosters + in_place_of_base + 1:
            raise Violation("as many boosters as are wanted", f"{len(known)} of {setup.boosters}")
        attempt = state.attempt
        is_quiet = attempt is not None and attempt.phase is AttemptPhase.TRAINING and not attempt.is_decisive
        if (
            len(known) < setup.boosters
            and is_quiet
            and state.stage is Stage.ATTEMPT
            and not is_asking(state)
            and now_s > state.asking.ask_s + 1.0
            and state.history.scale is None
            and not (setup.is_local or state.time_limit.is_ending)
            and state.requests == Requests()
        ):
            raise Violation(
                "as many boosters as are wanted", f"{len(known)} of {setup.boosters}, and none is asked for"
            )
        if state.boosters is before.boosters and state.members is before.members:
            return
        for booster in state.boosters:
            for node in booster.nodes:
                if node not in state.members or state.members[node].allocation != booster.allocation:
                    raise Violation("one allocation a member", f"{node} of {booster.allocation}")

    def _check_ends(self, driver: Driver, seen: AllocationsSeen) -> None:
        """A booster that was ordered to end does, also where the first order was lost."""
        for booster in driver.state.boosters:
            key = (driver.term, booster.allocation)
            is_there = seen.states.get(booster.allocation) is not AllocationState.ENDED
            self._overdue[key] = self._overdue.get(key, 0) + 1 if booster.is_end_sent and is_there else 0
            if self._overdue[key] > _END_LOOKS:
                raise Violation("an order to end a booster is heard", f"{booster.allocation} is still there")

    def _check_members(self, driver: Driver) -> None:
        members = driver.state.members
        counted = dict.fromkeys(Phase, 0)
        for _, member in members.table.items():
            counted[member.phase] += 1
        leaving = {node for node, member in members.table.items() if member.phase is Phase.RETURNING}
        now_s = self._world.clock.now
        self._leaving = {node: self._leaving.get(node, now_s) for node in leaving} if leaving else {}
        if counted != dict(members.counts):
            raise Violation("one phase a member", f"counts {members.counts} differ from the table's {counted}")

    def _check_records(self, driver: Driver, todo: Any) -> None:
        history = self._history[driver.term]
        for command in todo:
            if type(command) is Record:
                event = {"time": command.time_s, "event": command.event, **command.fields}
                history = apply(history, event)
                if driver is not self._world.folder.holders[-1]:
                    continue  # it is not written
                if command.event == "node_out":
                    self._check_out(command.fields["node"], command.fields.get("reason") or "")
                elif command.event == "fault":
                    self._check_fault(driver, command.fields)
        if history != driver.state.history:
            raise Violation("replay gives the state", f"{history} differs from {driver.state.history}")
        for difference in differences(driver.state):
            raise Violation("a successor knows the state", difference)
        self._history[driver.term] = driver.state.history  # equal: what does not change is the same object next time

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
            self._served = 0
        elif name == "commit" and event["tier"] == "memory":
            self._check_holders()
        if name == "attempt_start":
            self.trains_on(event["nodes"])
            self._world.count_rung(event["rung"])
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
        if driver is None or driver.state is None or not driver.state.holders or driver.state.requests.stop is not None:
            return
        self._served += 1
        if self._served >= _MOST_SERVED:
            held = f"{driver.state.holders} hold what nobody needs after {self._served} commits"
            raise Violation("holders are let go", held)

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
        asked = driver.state.requests
        if driver.term in self._cancel_s or asked.stop is not None or asked.is_cancelled:
            raise Violation("no attempt begins as the job is to end", f"attempt {command.attempt} starts: {asked}")
        by = self._attempts.setdefault(command.attempt, driver.term)
        if by != driver.term:
            raise Violation("one attempt a number", f"attempt {command.attempt} was started in term {by} already")
        holders = self._world.folder.holders
        if driver is not holders[-1]:
            return
        members = driver.state.members
        gone = {*self._out_at.get(command.attempt, ()), *members.out()}
        gone.update(name for name in self._world.hosts if name not in members)
        full_s = driver.state.full_s
        if full_s is not None and driver.now_s - full_s >= TRAINED_GRACE_S:
            gone.update(name for name, member in members.table.items() if member.phase is Phase.JOINING)
        self._out_at[command.attempt] = frozenset(gone)
        for name, host in self._world.hosts.items():
            runner = host.runner
            if runner is None or runner.attempt in (None, command.attempt) or not runner.has_workers:
                continue
            link = driver.links.links.get(name)
            if link is None or link.runner is not runner or name not in members:
                continue
            if name in command.nodes or (name, runner.attempt) in self._to_kill:
                continue
            if members[name].phase not in (Phase.OUT, Phase.RETURNING):
                raise Violation(
                    "one attempt at a time", f"{name} still has attempt {runner.attempt} as {command.attempt} starts"
                )

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
        attempt = driver.state.attempt if driver is not None and driver.state is not None else None
        if attempt is None or attempt.outcome != "done" or driver.state.requests.is_cancelled:
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
        driver = world.ruling()
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
        suspects = driver.state.history.gains.suspects if driver is not None and driver.state is not None else ()
        gone += [name for name in layout if name not in gone and name not in nodes and name in suspects]
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
        state, node = driver.state, command.node
        serves = node in state.holders or (state.attempt is not None and node in state.attempt.nodes)
        if serves or state.members[node].phase is not Phase.OUT or node not in state.job.nodes:
            raise Violation("a node is given back once nobody needs it", f"{node}: {state.members[node]}")

    @property
    def newest_step(self) -> int:
        """The newest committed step that was not given up; 0 for none."""
        return max((step for step, _ in self._committed), default=0)

    def ends(self, driver: Driver, command: EndJob) -> None:
        for node, since_s in self._leaving.items():
            if self._world.clock.now - since_s > LEAVING_S and self._world.kinds <= _BREAKS:
                raise Violation("a node that is back is judged", f"{node} is leaving since {since_s:.0f} s")
        if driver.term in self._ended:
            raise Violation("nothing outlives the job", "EndJob twice")
        self._ended.add(driver.term)
        members = driver.state.members.table
        self._dismissed.update(name for name, each in members.items() if each.phase is Phase.OUT and not each.is_lost)
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
        if command.outcome == "stopped" and driver.state.requests.stop is None and driver.state.requeue.value != "done":
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

    def _check_use(self, driver: Driver) -> None:
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
        changed_s = max(self._changed_s, self._scaled_s, *(job.since_s or 0.0 for job in running), 0.0)
        there = driver.job.base_size + sum(len(job.hosts) for job in running)
        most = allowed(driver.job, min(driver.state.history.scale or world.setup.sizes[0], there))
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
