"""A supervisor: performs the core's commands as they come, and makes its inputs of what the world answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from launcher.core import commands as do
from launcher.core import inputs as given
from launcher.core.ending import dismissals, goes_on
from launcher.core.liveness import CUT_OFF_S, may_be_cut_off
from launcher.core.state import ElasticLimits, JobFacts, RestartLimits, State
from launcher.core.succession import has_begun, successors, training_order
from launcher.leadership.requeue import ASK_AGAIN_S, TIMEOUT_S
from launcher.supervisor.drains import LOOK_S as DRAINS_S
from simulation.agents import AgentGroup
from simulation.clock import EPOCH_S
from simulation.event_rules import LACKS_NODES, NO_SLURMD, UNANSWERED
from simulation.folder import FULL, HANGS, REMOVED
from simulation.links import Links
from simulation.runner import BASE
from simulation.slurm import COMMAND_TIMEOUT_S

if TYPE_CHECKING:
    from simulation.host import Host
    from simulation.standby import BatchScript, Standby
    from simulation.world import World

_SETTLED = object()
WRITE_AGAIN_S = 0.5
CONNECT_S = 2.0  # to a slurmd that does not answer
LOOK_S = 10.0  # how often it asks after boosters


class Driver:
    """One supervisor, from its term to its end.

    Args:
        world: where it runs.
        host: its node.
        after: the term that it takes over; None where the scheduler has started the job.
        is_silent: whether nothing answers on the predecessor's node.
        batch, standby: what has started it.

    Attributes:
        term: its term; 0 where it could not take one.
        state: the core's.
        is_alive: whether the process is there.
        is_done: whether it performs nothing more: the job has ended, or another rules.
        is_listening: whether runners can connect.
        asking: numbers of boosters that it is submitting.
        log: the events that it knows, those of the file and its own.
    """

    __slots__ = (
        "_ask_s", "_batch", "_drained", "_frozen_s", "_inbox", "_is_busy", "_is_flushing", "_is_frozen", "_is_noticing",
        "_own_file", "_skew_s", "_standby", "_timer", "_unwritten", "asking", "group", "host", "is_alive", "is_done",
        "is_ending", "is_listening", "job", "links", "log", "started_s", "state", "term", "timer_late_s", "world",
    )  # fmt: skip

    def __init__(
        self,
        world: World,
        host: Host,
        *,
        after: int | None = None,
        is_silent: bool = False,
        batch: BatchScript | None = None,
        standby: Standby | None = None,
    ) -> None:
        self.world = world
        self.host = host
        self._batch = batch
        self._standby = standby
        self.is_alive = True
        self.is_done = self.is_ending = self.is_listening = False
        self._is_frozen = self._is_busy = self._is_flushing = self._is_noticing = False
        self._frozen_s: float | None = None
        self._own_file: str | None = None
        self._drained: dict[str, str] = {}
        self.asking: set[str] = set()
        self._inbox: list[Any] = []
        self._unwritten: list[Any] = []
        self._timer = 0
        self.timer_late_s = 0.0
        self.term = 0
        self.group: AgentGroup | None = None
        self.started_s = world.clock.now
        self.log: list[dict[str, Any]] = []
        self.state: State = None  # type: ignore[assignment]
        self.job: JobFacts = None  # type: ignore[assignment]
        self._skew_s = 0.0
        self.links = Links(world, self, successors(world.job_nodes, self._own, self._predecessor_of(after)))
        host.drivers.append(self)
        world.drivers.append(self)
        world.clock.after(world.delay(0.05, 0.4), self._take_office, after, is_silent)

    @property
    def _own(self) -> str | None:
        """Its node, unless this is the local cluster."""
        return None if self.world.setup.is_local else self.host.name

    def _predecessor_of(self, after: int | None) -> str | None:
        node = self.world.folder.holders[after - 1].host.name if after else None
        return None if node == self.host.name else node

    @property
    def is_awake(self) -> bool:
        return self.is_alive and not self._is_frozen and not self.host.is_frozen

    @property
    def renews_lease(self) -> bool:
        if not self.is_awake or self.is_done or self.links.is_isolated:
            return False
        return self.world.folder.is_writable(self.host)

    @property
    def now_s(self) -> float:
        return EPOCH_S + self.world.clock.now + self._skew_s

    # Its life.

    def _take_office(self, after: int | None, is_silent: bool) -> None:
        world, folder = self.world, self.world.folder
        if not self.is_alive or self.is_done:
            return
        if folder.mode == REMOVED:
            self._leave("failed")
            return
        if not self.is_awake or not folder.is_writable(self.host):
            world.clock.after(1.0, self._take_office, after, is_silent)
            return
        if (after is not None and folder.newest_term != after) or folder.result is not None:
            self._leave("superseded")
            return
        predecessor = self._predecessor_of(after)
        self.term = folder.newest_term + 1
        folder.claim(self)
        self._skew_s = self.host.skew_s
        if folder.events:  # its clock never runs behind the events
            self._skew_s = max(self._skew_s, folder.events[-1]["time"] - EPOCH_S - world.clock.now)
        if after is not None:
            event = {
                "time": round(self.now_s, 3),
                "event": "takeover",
                "node": self.host.name,
                "predecessor": predecessor,
            }
            folder.append(self.term, event)
            world.count_rung("takeover")
        self.log = list(folder.events)
        is_take_over = after is not None and has_begun(self.log, world.slurm.starts)
        self.job = self._make_job(is_take_over, predecessor, is_silent)
        self.is_listening = True
        self.state, todo = world.begin(self.job, self.log, self.now_s)
        world.supervisor_begins(self, todo)
        self._perform(todo)
        if world.setup.boosters:
            world.clock.after(LOOK_S, self._look_at_boosters)
        if not world.setup.is_local:
            world.clock.after(DRAINS_S, self._look_at_drains)
        if world.setup.names_own:
            self._look_at_own()
        world.changed()

    def look_at_own_within(self, seconds: float) -> None:
        """The script's own checkpoints may have changed."""
        self.world.clock.after(self.world.delay(0.001, seconds), self._look_at_own)

    def _look_at_own(self) -> None:
        file, modified_s = self.world.own_file
        if file != self._own_file and self.is_awake and self.is_listening:
            self._own_file = file
            self.put(given.OwnCheckpointsSeen(file=file, modified_s=modified_s))

    def _look_at_drains(self) -> None:
        """Asks which nodes are drained, again and again."""
        if not self.is_alive or self.is_done:
            return
        self.world.clock.after(DRAINS_S, self._look_at_drains)
        known = (*self.world.job_nodes, *(node for booster in self.state.boosters for node in booster.nodes))
        found = {name: "drained by root: a broken fan" for name in known if self.world.hosts[name].is_drained}
        if self.is_awake and self.world.slurm.is_answering and found != self._drained:
            self._drained = found
            self.world.slurm.ask(self, lambda error: given.NodesDrained(reasons=found))

    def _look_at_boosters(self) -> None:
        """Asks how they stand, again and again."""
        if self.is_alive and not self.is_done:
            self.world.clock.after(LOOK_S, self._look_at_boosters)
            is_any = bool(self.world.boosters.jobs or self.state.boosters)
            if is_any and self.is_awake and self.world.slurm.is_answering:
                self.world.slurm.ask(self, lambda error: self._boosters_seen())

    def _boosters_seen(self) -> given.AllocationsSeen:
        known = {each.allocation for each in self.state.boosters}
        return self.world.boosters.seen(known - self.asking)

    def _make_job(self, is_take_over: bool, predecessor: str | None, is_silent: bool) -> JobFacts:
        world, setup = self.world, self.world.setup
        nodes = training_order(world.job_nodes, self._own)
        return JobFacts(
            nodes=nodes,
            sizes=setup.sizes,
            allocations=dict.fromkeys(nodes, BASE),
            base_nodes=setup.nodes,
            booster_nodes=setup.booster_nodes if setup.boosters else 0,
            most_boosters=setup.boosters,
            elastic=ElasticLimits(
                scaling_timeout_s=setup.settle_s,
                graceful_shutdown_timeout_s=300.0,
                faulty_scale_down_timeout_s=10.0,
                scale_up_snooze_s=setup.snooze_s,
            ),
            limits=RestartLimits(
                max_without_progress=setup.max_without_progress,
                max_restarts=1_000_000 if setup.has_checkpoint or setup.names_own else 100,  # as the job file's default
                hang_timeout_s=setup.hang_timeout_s,
            ),
            has_checkpoint=setup.has_checkpoint,
            is_local=setup.is_local,
            can_requeue=not setup.is_local,
            predecessor=predecessor,
            is_predecessor_silent=is_silent,
            is_take_over=is_take_over,
            start={"run_id": "run", "restart_count": world.slurm.starts},
        )

    def die(self) -> None:
        """The process is gone; its kernel, where it lives, closes its connections."""
        if not self.is_alive:
            return
        self.is_alive = self.is_listening = False
        if self.group is not None:
            self.group.let_go()
        if self.host.is_up:
            for link in list(self.world.links):
                if link.driver is self:
                    link.close_down()
        self._go()
        if self._batch is not None:
            self._batch.died()
        if self._standby is not None:
            self._standby.ended()
        self.world.changed()

    def freeze(self) -> None:
        """The process stands still, or its whole host does."""
        self._is_frozen = True
        self.world.changed()

    def thaw(self) -> None:
        self._is_frozen = False
        self.world.changed()

    def noted_freeze(self) -> None:
        """Called whenever something has changed: has it begun, or ceased, to stand still?"""
        if not self.is_alive:
            return
        now_s = self.world.clock.now
        if not self.is_awake:
            if self._frozen_s is None:
                self._frozen_s = now_s
        elif self._frozen_s is not None:
            slept_s, self._frozen_s = now_s - self._frozen_s, None
            if self.is_listening and not self.is_done:
                self.world.clock.after(self.world.delay(0.0, 0.01), self._woke, slept_s)
        if self.is_listening and not self.is_done and self.world.folder.newest_term > self.term:
            self.notice_later()

    def _woke(self, slept_s: float) -> None:
        waiting, self._inbox = self._inbox, []
        self._flush_soon()
        self._look_at_own()
        self.links.woke(slept_s)
        for message in waiting:
            self._inbox.append(message)
        self._read()

    def notice_later(self) -> None:
        """Another has taken the next term: this one finds it when it looks."""
        if not self._is_noticing and self.is_awake and self.world.folder.is_seen(self.host):
            self._is_noticing = True
            self.world.clock.after(self.world.delay(0.0, 0.5), self._notice)

    def _notice(self) -> None:
        self._is_noticing = False
        if self.is_alive and not self.is_done and self.is_awake and self.world.folder.is_seen(self.host):
            self._leave("superseded")

    def _leave(self, outcome: str) -> None:
        """It performs nothing more."""
        self.is_done, self.is_listening = True, False
        self.links.abort()
        if self.group is not None:
            self.group.let_go()
        if self.is_alive:
            self.is_alive = False
            self._go()
            if self._batch is not None:
                self._batch.ended(outcome)
            if self._standby is not None:
                self._standby.ended()
            self.world.changed()

    def _go(self) -> None:
        if self in self.host.drivers:
            self.host.drivers.remove(self)
        if self in self.world.drivers:
            self.world.drivers.remove(self)

    # Inputs.

    def put(self, message: Any) -> None:
        if not self.is_alive or self.is_done:
            return
        self._inbox.append(message)
        self._read()

    def receive(self, link: Any, message: Any) -> None:
        if self.is_alive and not self.is_done:
            self._inbox.append((link, message))
            self._read()

    def _read(self) -> None:
        if self._is_busy or not self.is_awake or self.state is None:
            return
        self._is_busy = True
        inbox = self._inbox
        while inbox and not self.is_done and self.is_alive:
            message = inbox.pop(0)
            if type(message) is tuple:
                self.links.receive(*message)
            else:
                self._decide(message)
                if self.world.setup.names_own and type(message) in (given.WorkersEnded, given.WorkersKilled):
                    self.look_at_own_within(0.02)
        self._is_busy = False

    def _decide(self, message: Any) -> None:
        world, before = self.world, self.state
        now_s = self.now_s
        self.state, todo = world.decide(before, message, now_s)
        world.decided(self, before, message, todo)
        self._perform(todo)

    # Commands.

    def _perform(self, todo: Any) -> None:
        for command in todo:
            if self.is_done or not self.is_alive:
                return
            _PERFORM[type(command)](self, command)

    def _set_timer(self, command: do.SetTimer) -> None:
        self._timer += 1
        if command.at_s is not None:
            at_s = command.at_s - EPOCH_S - self._skew_s + 0.001 * self.world.rng.random() + self.timer_late_s
            self.world.clock.at(at_s + 1e-6, self._fire, self._timer)

    def _fire(self, number: int) -> None:
        if number == self._timer:
            self.put(given.TimerFired())

    def _record(self, command: do.Record) -> None:
        event = {"time": command.time_s, "event": command.event, **command.fields}
        self.log.append(event)
        self._unwritten.append(event)
        self._flush_soon()

    def _settle(self, command: do.Settle) -> None:
        self._unwritten.append(_SETTLED)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flushing and self._unwritten:
            self._is_flushing = True
            self.world.clock.after(self.world.delay(0.0005, 0.005), self.flush)

    def flush(self) -> None:
        """The writer's thread: writes what was recorded."""
        self._is_flushing = False
        folder = self.world.folder
        if not self.is_awake or not self._unwritten:
            return
        if folder.mode == HANGS:
            return
        if not folder.is_writable(self.host):  # they are kept
            if _SETTLED in self._unwritten and folder.mode != REMOVED:
                self._is_flushing = True
                self.world.clock.after(WRITE_AGAIN_S, self.flush)
            return
        unwritten, self._unwritten = self._unwritten, []
        if folder.newest_term > self.term:
            self.notice_later()
            return
        for item in unwritten:
            if item is _SETTLED:
                self.put(given.EventsWritten())
            else:
                folder.append(self.term, item)

    def _send(self, command: do.Send) -> None:
        if (
            command.order in (do.Order.RELEASE_AGENT, do.Order.FINISH_AGENT)
            and self.group is not None
            and self.group.ordered_s is None
        ):
            self.group.ordered_s = self.world.clock.now
        for node in command.nodes:
            self.links.send(node, command)

    def _start_workers(self, command: do.StartWorkers) -> None:
        self.world.invariants.starts(self, command)
        message = ("start", command.nodes, command.attempt, command.has_agents)
        for node in command.nodes:
            self.links.send(node, message)

    def _leave_runner(self, command: do.Leave) -> None:
        self.links.send(command.node, ("leave", False))

    def _dismiss(self, command: do.Dismiss) -> None:
        self.links.dismiss(command.node, forget=command.forget, allocation=command.allocation)

    def _await_return(self, command: do.AwaitReturn) -> None:
        self.links.await_return(command.nodes)

    def _start_runners(self, command: do.StartRunners) -> None:
        self.world.slurm.start_runners(self, command.nodes)

    def _release_runners(self, command: do.ReleaseRunners) -> None:
        if self.world.slurm.step is not None:
            self.world.slurm.step.is_released = True

    def _ask_launch(self, command: do.AskLaunch) -> None:
        step = self.world.slurm.step
        self._answer_later(given.LaunchEnded(failed={} if step is None else dict(step.failed), has_ended=False))

    def _start_agents(self, command: do.StartAgents) -> None:
        self.group = AgentGroup(self.world, self, command)

    def _adopt_agents(self, command: do.AdoptAgents) -> None:
        self.group = None

    def _kill_agents(self, command: do.KillAgents) -> None:
        if self.group is not None:
            self.group.kill()

    def _let_go(self, command: do.LetGo) -> None:
        self._release_runners(do.ReleaseRunners())
        if self.group is not None:
            self.group.let_go()
            self.group = None

    def _ask_unusable(self, command: do.AskUnusable, since_s: float | None = None) -> None:
        since_s = self.world.clock.now if since_s is None else since_s

        def answer(error: str | None) -> given.UnusableAnswered | None:
            unusable = {} if error is not None else self.world.slurm.unusable(self, command.nodes, command.allocations)
            silent = [self.world.hosts[name] for name in command.nodes if unusable.get(name) == NO_SLURMD]
            cut = {host.name for host in silent if host.is_frozen or not self.world.network.reaches(self.host, host)}
            is_early = self.world.clock.now < since_s + CUT_OFF_S
            if is_early and may_be_cut_off(command.nodes, self.host.name, cut):
                self.world.clock.after(CONNECT_S, self._ask_unusable, command, since_s)
                return None
            self.world.invariants.found_unusable(unusable)
            return given.UnusableAnswered(asked=command.nodes, purpose=command.purpose, unusable=unusable, error=error)

        if self.is_alive and not self.is_done:
            self.world.slurm.ask(self, answer)

    def _ask_allocation(self, command: do.AskAllocation) -> None:
        slurm = self.world.slurm
        self.world.invariants.asks_allocation(self, command)
        self.asking.add(command.allocation)
        wait_s = self.world.delay(0.01, 0.2) + slurm.slow_s if slurm.is_answering else COMMAND_TIMEOUT_S
        self.world.clock.after(wait_s, self._sbatch, command)

    def _sbatch(self, command: do.AskAllocation) -> None:
        """It outlives this process. The scheduler may have the booster although it does not answer."""
        world, number = self.world, command.allocation
        error = None if world.slurm.is_answering else UNANSWERED
        is_there = number in world.boosters.jobs  # by its name
        if not is_there and (error is None or world.rng.random() >= 0.7):
            world.boosters.submit(number, command.nodes, command.exclude)
        world.clock.after(0.0 if is_there or error is not None else world.slurm.sbatch_s, self._asked, number, error)

    def _asked(self, number: str, error: str | None) -> None:
        self.asking.discard(number)
        if self.is_ending:
            self.world.boosters.end(number)
        job_id = "" if error is not None else f"job-{number}"
        self.put(given.AllocationAsked(allocation=number, job_id=job_id, error=error))

    def _end_allocation(self, command: do.EndAllocation) -> None:
        self.world.invariants.ends_allocation(self, command)
        if self.world.slurm.is_answering:
            self.world.clock.after(self.world.delay(0.01, 0.2), self.world.boosters.end, command.allocation)

    def _give_back(self, command: do.GiveBack) -> None:
        host = self.world.hosts[command.node]
        self.world.invariants.gives_back(self, command)
        if self.world.slurm.is_answering and not host.drivers:
            host.is_allocated = False

    def _ask_why_terminated(self, command: do.AskWhyTerminated) -> None:
        slurm = self.world.slurm
        slurm.ask(self, lambda error: given.TerminationExplained(why=slurm.why_terminated(error)))

    def _ask_time_left(self, command: do.AskTimeLeft) -> None:
        slurm = self.world.slurm
        slurm.ask(
            self,
            lambda error: given.TimeLeftAnswered(left_s=slurm.time_left_s() if error is None else None),
        )

    def _probe_folder(self, command: do.ProbeFolder) -> None:
        self.world.clock.after(self.world.delay(0.001, 0.02), self._probed, command)

    def _probed(self, command: do.ProbeFolder) -> None:
        folder = self.world.folder
        if not self.is_alive or self.is_done:
            return
        if folder.mode == HANGS or not self.is_awake:
            self.world.clock.after(0.5, self._probed, command)
        elif folder.mode == REMOVED and command.attempt is None:
            self.put(given.FolderRemoved(reason="the job's folder was removed"))
        elif not folder.is_seen(self.host) or (command.attempt is not None and folder.mode != "ok"):
            self.put(given.FolderProbed(error="the folder cannot be read" if folder.mode != FULL else "no space left"))
        elif folder.newest_term > self.term:
            self._leave("superseded")
        else:
            self.put(given.FolderProbed())

    def _requeue(self, command: do.Requeue, since_s: float | None = None) -> None:
        slurm, since_s = self.world.slurm, self.world.clock.now if since_s is None else since_s

        def answer(error: str | None) -> given.Requeued | None:
            if error is not None and self.world.clock.now < since_s + TIMEOUT_S:
                self.world.clock.after(ASK_AGAIN_S, self._requeue, command, since_s)
                return None
            if error is None:
                error, is_ours = slurm.requeue(command.exclude)
                if is_ours:
                    self.world.count_rung("requeue")
            return given.Requeued(error=error, lacks_nodes=error is not None and error.startswith(LACKS_NODES))

        if self.is_alive and not self.is_done:
            slurm.ask(self, answer)

    def _end_job(self, command: do.EndJob) -> None:
        self.is_ending = True
        self.world.invariants.ends(self, command)
        if self.group is not None:
            self.group.kill()
        for node, forget in dismissals(command.outcome, self.world.job_nodes, self.links.nodes).items():
            self.links.dismiss(node, forget=forget)
        if self.world.slurm.is_answering:
            self.world.boosters.end_all(30.0)
        self.world.clock.after(self.world.delay(0.2, 1.0), self._write_result, command, self.world.clock.now)

    def _write_result(self, command: do.EndJob, since_s: float) -> None:
        world, folder = self.world, self.world.folder
        if not self.is_alive or self.is_done:
            return
        if not self.is_awake:
            world.clock.after(1.0, self._write_result, command, since_s)
            return
        self.flush()
        if folder.newest_term > self.term and folder.is_seen(self.host):
            self._leave("superseded")
            return
        if not goes_on(command.outcome):
            if not folder.is_writable(self.host) and folder.mode != REMOVED and world.clock.now < since_s + 600.0:
                world.clock.after(1.0, self._write_result, command, since_s)
                return
            if folder.result is None:
                if folder.mode != REMOVED:
                    event = {"time": round(self.now_s, 3), "event": "job_end", "outcome": command.outcome}
                    folder.append(self.term, event)
                folder.result = (command.outcome, command.reason)
                world.ends(command.outcome, command.reason)
            world.slurm.ended(self)
        self._leave(command.outcome)

    def _answer_later(self, answer: Any) -> None:
        self.world.clock.after(self.world.delay(0.001, 0.02), self.put, answer)


_PERFORM: dict[type, Callable[[Driver, Any], None]] = {
    do.SetTimer: Driver._set_timer,
    do.Record: Driver._record,
    do.Settle: Driver._settle,
    do.Send: Driver._send,
    do.StartWorkers: Driver._start_workers,
    do.Leave: Driver._leave_runner,
    do.Dismiss: Driver._dismiss,
    do.AwaitReturn: Driver._await_return,
    do.StartRunners: Driver._start_runners,
    do.ReleaseRunners: Driver._release_runners,
    do.AskLaunch: Driver._ask_launch,
    do.StartAgents: Driver._start_agents,
    do.AdoptAgents: Driver._adopt_agents,
    do.KillAgents: Driver._kill_agents,
    do.LetGo: Driver._let_go,
    do.AskUnusable: Driver._ask_unusable,
    do.AskAllocation: Driver._ask_allocation,
    do.GiveBack: Driver._give_back,
    do.EndAllocation: Driver._end_allocation,
    do.AskWhyTerminated: Driver._ask_why_terminated,
    do.AskTimeLeft: Driver._ask_time_left,
    do.ProbeFolder: Driver._probe_folder,
    do.Requeue: Driver._requeue,
    do.EndJob: Driver._end_job,
}
