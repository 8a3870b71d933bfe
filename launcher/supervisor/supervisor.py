"""The supervisor's driver: gives inputs to the core, in order, and performs the core's commands.

It runs in the main thread of its process, on the batch host, or on another node after a take-over. Each record of the
core is a line in events.jsonl. A supervisor that starts in a folder with events continues from them. So a job continues
after a requeue, and a supervisor takes over from another one together with the running attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from holdfast.base.environment import Variable
from launcher.connections.host_addresses import ranges
from launcher.connections.links import LEAVE, Links
from launcher.core import begin, decide, inputs
from launcher.core import commands as do
from launcher.core.commands import Command
from launcher.core.ending import dismissals, goes_on
from launcher.core.inputs import Input
from launcher.core.outcomes import JobOutcome
from launcher.core.requests import is_asked
from launcher.core.state import State
from launcher.core.succession import has_begun, successors
from launcher.env import failure_domains
from launcher.errors import LauncherError
from launcher.history.events import Event, EventLog, read_events
from launcher.history.outcome import Outcome, done, is_unsaved, kept, unsaved
from launcher.history.status import StatusFold
from launcher.history.stored import StatusReader
from launcher.job.jobfile import JobSpec
from launcher.job.scale_request import ScaleRequest
from launcher.job.stop_request import StopRequest
from launcher.leadership.lease import FolderRemovedError, Leadership, Superseded
from launcher.leadership.terms import newest
from launcher.scheduler.cluster import Cluster
from launcher.supervisor.allocations import Allocations
from launcher.supervisor.drains import follow_drains
from launcher.supervisor.folder import probe, read_secret, until_written
from launcher.supervisor.job_facts import job_facts
from launcher.supervisor.own_checkpoints import OwnCheckpoints
from launcher.supervisor.processes import Processes
from launcher.supervisor.recorder import Recorder
from launcher.supervisor.scheduler_calls import SchedulerCalls
from launcher.supervisor.signals import log_signal, signals_into
from launcher.supervisor.stragglers import Stragglers
from launcher.supervisor.user_requests import bring_in_requests
from slurm.hostlist import compress

log = logging.getLogger(__name__)

FOLDER_TIMEOUT_S = 600.0  # for writing the result at the job's end
WRITE_AGAIN_S = 0.5
PROGRESS_S = 0.25
PUBLISH_S = 2.0
LEAVE_S = 10.0  # for a runner to remove the job's memory on a node that the job has left
LEFT_POLL_S = 0.2
_NOT_LOGGED = ("time", "event", "term", "traceback", "sources")


class Supervisor:
    """Made and run by entry.py.

    Args:
        spec: the job.
        job_dir: its folder.
        cluster: the cluster on which it runs.
        events: its events.
        take_over: the term to take over; None to start the job, or to continue it after a requeue.
        predecessor_is_silent: whether nothing answers on the previous supervisor's node.
    """

    def __init__(
        self,
        spec: JobSpec,
        job_dir: Path,
        cluster: Cluster,
        events: EventLog,
        take_over: int | None = None,
        predecessor_is_silent: bool = False,
    ) -> None:
        self._spec = spec
        self._job_dir = job_dir
        self._cluster = cluster
        self._events = events
        self._take_over = take_over
        self._predecessor_is_silent = predecessor_is_silent
        self._begun_s = time.monotonic()
        self._epoch_s = time.time() - self._begun_s  # offset of the core's clock, which is epoch time that never jumps
        self._inbox: asyncio.Queue[Input] = asyncio.Queue()
        self._leadership = Leadership(job_dir, run_id=cluster.run_id, node=cluster.node, host=cluster.host)
        self._recorder = Recorder(events, self._leadership.check, self._on_superseded, StatusReader(job_dir))
        self._predecessor = self._node_taken_over_from()
        self._superseded = False
        self._has_request = False  # whether a user has asked for the job's end
        self._failure: BaseException | None = None  # of a task that runs next to the loop
        self._links = Links(
            cluster.nodes,
            read_secret(job_dir),
            self._inbox,
            successors(cluster.nodes, cluster.node, self._predecessor),
            cluster.restart_count,
            cluster.allocation,
            spec.sizes[0] if spec.most_boosters else 0,  # the base may have no more than one node
        )
        self._switches = failure_domains.switches_of(cluster.topology, cluster.nodes)
        self._stragglers = Stragglers(spec.straggler, self._switches)
        self._processes = Processes(spec, job_dir, cluster, self._inbox.put_nowait, self._spawn)
        self._allocations = Allocations(cluster, self._inbox.put_nowait)
        self._scheduler = SchedulerCalls(cluster, self._inbox.put_nowait)
        self._own_checkpoints = OwnCheckpoints(spec.progress, self._inbox.put_nowait) if spec.progress else None
        self._history = StatusFold()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> Outcome:
        """Run the job to its outcome and end all its processes. If another supervisor takes over, they keep running."""
        self._recorder.start()
        try:
            with signals_into(self._inbox):
                return await self._supervise()
        except Superseded as error:
            return self._leave(str(error))
        finally:
            for task in self._tasks:
                task.cancel()
            await self._recorder.close()

    async def _supervise(self) -> Outcome:
        try:
            end = await self._until_end()
        except Superseded:
            raise
        except Exception as error:
            if not self._leadership.term:  # no process was started, and another supervisor may lead: record nothing
                raise
            log.exception("internal error")  # a bug: end all processes, write a result
            reason = f"{type(error).__name__}: {error}; see log/supervisor.log"
            end = do.EndJob(outcome=JobOutcome.INTERNAL, reason=reason, step=None)
        return await self._end(end)

    async def _until_end(self) -> do.EndJob:
        """Open the server and give inputs to the core until the core ends the job."""
        port = await self._links.open(self._cluster.listen_host)
        try:
            self._leadership.take(port, self._take_over)
        except OSError as error:
            why = f"this host cannot take the lead of the job ({error.strerror or error})"
            raise LauncherError(f"{self._job_dir}: {why}; make the folder writable and start the job again") from error
        self._links.term = self._events.term = self._leadership.term
        self._processes.environment = self._allocations.environment = {
            **self._spec.env,
            Variable.RUN_ID: self._cluster.run_id,
            Variable.JOB_DIR: str(self._job_dir),
            Variable.RESTART_COUNT: str(self._cluster.restart_count),
            Variable.SUPERVISOR: f"{self._cluster.host}:{port}",
            **failure_domains.to_environment(self._switches),
        }
        if self._take_over is not None:  # readers ignore later lines of the previous supervisor
            _log_event(self._events.append("takeover", node=self._cluster.node, predecessor=self._predecessor))
        earlier_events = read_events(self._job_dir / "events.jsonl")
        for event in earlier_events:
            self._history.add(event)
            if event["time"] > self._now_s():  # another host's clock was ahead, but events must be in order of time
                self._epoch_s += event["time"] - self._now_s()
        self._spawn(self._leadership.hold(lambda: not self._links.is_isolated, self._on_superseded, self._on_removed))
        self._spawn(bring_in_requests(self._job_dir, self._inbox.put_nowait))
        self._spawn(follow_drains(self._cluster, lambda: self._links.nodes, self._inbox.put_nowait))
        if self._own_checkpoints:
            self._spawn(self._own_checkpoints.follow())
        self._spawn(self._report_progress())
        self._spawn(self._publish_steps())
        job = job_facts(
            self._spec,
            self._job_dir,
            self._cluster,
            self._switches,
            predecessor=self._predecessor,
            is_predecessor_silent=self._predecessor_is_silent,
            is_take_over=self._take_over is not None and has_begun(earlier_events, self._cluster.restart_count),
        )
        state, commands = begin(job, earlier_events, self._now_s())
        if self._spec.most_boosters:
            self._spawn(self._allocations.follow(state.boosters))
        while (end := self._perform(state, commands)) is None:
            given = await self._next_input()
            self._has_request |= isinstance(given, inputs.Terminated | inputs.CancelAsked)
            if isinstance(given, inputs.NodeJoined):
                self._allocations.joined(given.allocation)
            if isinstance(given, inputs.Terminated):
                given = await self._allocations.explained(given, state)
            log_signal(given)
            self._check_rule()
            if self._failure is not None:
                raise self._failure
            state, commands = decide(state, given, self._now_s())
        self._has_request |= is_asked(state.requests)
        return end

    async def _next_input(self) -> Input:
        while True:
            given = await self._inbox.get()
            if not (self._own_checkpoints and self._own_checkpoints.holds_back(given)):
                return given

    def _perform(self, state: State, commands: tuple[Command, ...]) -> do.EndJob | None:
        for command in commands:
            self._check_rule()
            if isinstance(command, do.EndJob):
                return command
            self._PERFORM[type(command)](self, command)
        return None

    # Orders to runners.

    def _send(self, command: do.Send) -> None:
        message: dict[str, Any] = {"op": command.order.value, "attempt": command.attempt}
        if command.order is do.Order.RENEW_AGENT:
            message["generation"] = command.generation
        if command.order is do.Order.STOP:
            message["lower_s"] = command.lower_s
        for node in command.nodes:
            self._links.send(node, message)

    def _start_workers(self, command: do.StartWorkers) -> None:
        first = command.nodes[0]
        addresses = (address for node in command.nodes for address in self._links.addresses(node))
        hosts = ranges(addresses)  # hosts that may connect to the store on the first node
        start = {
            "op": "start",
            "attempt": command.attempt,
            "nodes": compress(command.nodes),  # each node gets all names: as a list, 160 MB in total at 4096 nodes
            "master_addr": self._address(first),
            "master_port": self._links.state(first)["port"],
            "agent": command.has_agents,
        }
        for rank, node in enumerate(command.nodes):
            self._links.send(node, start | {"node_rank": rank, "hosts": hosts if node == first else []})

    def _start_agents(self, command: do.StartAgents) -> None:
        hold = {"op": "hold", "attempt": command.attempt, "generation": command.generation}
        for node in command.holders:
            self._links.send(node, hold)
        self._processes.start_agents(command)

    async def _give_back(self, command: do.GiveBack) -> None:
        """Return a node to the scheduler, which kills what still runs there: its runner removes the job's memory
        before."""
        until_s = time.monotonic() + LEAVE_S
        while self._links.has(command.node) and time.monotonic() < until_s:
            await asyncio.sleep(LEFT_POLL_S)
        await self._scheduler.give_back(command.node)

    def _address(self, node: str) -> str:
        """The address at which other nodes reach a node. The batch host's runner may use a loopback address."""
        address = self._links.address(node)
        is_one_machine = self._cluster.listen_host.startswith("127.")
        return node if address.startswith("127.") and not is_one_machine else address

    # The record.

    def _record(self, command: do.Record) -> None:
        event = self._recorder.add(command.event, time=command.time_s, **command.fields)
        self._history.add(event)
        _log_event(event)

    async def _settle(self) -> None:
        while not await self._recorder.flushed():
            await asyncio.sleep(WRITE_AGAIN_S)
        self._inbox.put_nowait(inputs.EventsWritten())

    async def _probe_folder(self, command: do.ProbeFolder) -> None:
        if command.attempt is None:
            await self._probe(self._leadership.confirm)
        else:
            log_dir = self._log_dir(command.attempt)
            await self._probe(lambda: self._probe_logs(log_dir))

    def _probe_logs(self, log_dir: Path) -> None:
        self._leadership.confirm()  # if the job's folder was removed, nothing must be made there
        probe(log_dir)

    async def _probe(self, write: Callable[[], None]) -> None:
        why = None
        try:
            await asyncio.to_thread(write)
        except FolderRemovedError as error:  # the task that renews the lease checks again, and ends the job
            why = str(error)
        except Superseded:
            self._on_superseded()
            return
        except OSError as error:
            why = f"{error.filename or 'write'}: {error.strerror}"
        self._inbox.put_nowait(inputs.FolderProbed(error=why))

    # What comes in by itself.

    def _set_timer(self, command: do.SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if command.at_s is not None:
            delay_s = max(0.0, command.at_s - self._now_s())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._inbox.put_nowait, inputs.TimerFired())

    async def _report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            progress = self._links.heartbeats.progress()
            if progress is not None:
                self._inbox.put_nowait(progress)
            for given in self._stragglers.look(*self._links.heartbeats.take_times(), self._now_s()):
                self._inbox.put_nowait(given)

    async def _publish_steps(self) -> None:
        """Write the nodes' steps for people who watch. A file system that hangs holds up only this task."""
        published = None
        while True:
            await asyncio.sleep(PUBLISH_S)
            steps = self._links.heartbeats.steps()
            if steps is not None and steps != published:
                published = steps
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(steps.write, self._job_dir)

    # The end.

    async def _end(self, end: do.EndJob) -> Outcome:
        """End all processes of the job and write its result, unless the job continues after a requeue."""
        continues = goes_on(end.outcome)
        left = [node for node in self._cluster.nodes if not self._links.has(node)]
        checkpoint, name = self._spec.checkpoint, end.outcome
        if name is JobOutcome.DONE and checkpoint is not None and is_unsaved(self._history.status(), checkpoint.lower):
            name = JobOutcome.UNSAVED
        outcome = self._outcome(name, end.step, self._full_reason(end))
        for node, forget in dismissals(end.outcome, self._cluster.nodes, self._links.nodes).items():
            self._links.dismiss(node, forget=forget)
        await self._links.close()
        await self._processes.close()
        await self._cluster.close()
        if not continues:
            fields = {"outcome": outcome.name, "reason": outcome.reason, "step": outcome.step}
            event = self._recorder.add("job_end", **fields, seconds=outcome.seconds)
            _log_event(event)
            await self._recorder.settled()
            with contextlib.suppress(FolderRemovedError):
                await self._written(lambda: self._write_result(outcome))
        await self._recorder.settled()
        await self._written(self._events.flush)
        await self._cluster.end_allocations()
        if not continues:
            await self._cluster.forget(left)
        await asyncio.to_thread(self._cluster.await_requeue if continues else self._cluster.end_job)
        return outcome

    async def _written(self, write: Callable[[], None]) -> None:
        await until_written(write, timeout_s=FOLDER_TIMEOUT_S, give_up=self._is_pressed)

    def _is_pressed(self) -> bool:
        """Whether a user has asked for the end. Then writes that fail are not repeated."""
        while not self._inbox.empty():
            self._has_request |= isinstance(self._inbox.get_nowait(), inputs.Terminated | inputs.CancelAsked)
        return self._has_request

    def _full_reason(self, end: do.EndJob) -> str:
        """The reason of the outcome; for a job that ended well, with the steps below memory and the missing saves."""
        if end.outcome not in (JobOutcome.DONE, JobOutcome.HALTED):
            return end.reason
        status = self._history.status()
        well = kept(status, end.reason) if end.outcome is JobOutcome.HALTED else done(status)
        return "; ".join(filter(None, (well, unsaved(status))))

    def _write_result(self, outcome: Outcome) -> None:
        self._leadership.confirm()
        outcome.write(self._job_dir, self._cluster.run_id)
        StopRequest.remove(self._job_dir)
        ScaleRequest.remove(self._job_dir)

    def _outcome(self, name: JobOutcome, step: int | None, reason: str) -> Outcome:
        seconds = round(time.monotonic() - self._begun_s, 3)
        return Outcome(name=name, step=step, reason=reason, seconds=seconds)

    # Leadership.

    def _check_rule(self) -> None:
        if self._superseded:
            raise Superseded("another supervisor has taken over")

    def _on_superseded(self) -> None:
        self._superseded = True
        self._wake()

    def _on_removed(self, error: FolderRemovedError) -> None:
        self._inbox.put_nowait(inputs.FolderRemoved(reason=str(error)))

    def _leave(self, why: str) -> Outcome:
        """Leave the job to another supervisor: write nothing more. Processes started here end with this process."""
        log.warning("leaving the job to another supervisor: %s", why)
        self._links.abort()
        self._cluster.let_go()
        return self._outcome(JobOutcome.SUPERSEDED, None, why)

    def _node_taken_over_from(self) -> str | None:
        """The node of the previous supervisor; None if that was this node, or if there was none."""
        term = newest(self._job_dir) if self._take_over is not None else None
        return term.node if term is not None and term.node != self._cluster.node else None

    def _now_s(self) -> float:
        return self._epoch_s + time.monotonic()

    def _log_dir(self, attempt: int) -> Path:
        return self._job_dir / "log" / f"attempt-{attempt}"

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a coroutine as a task next to the loop. Its results come as inputs. Its failure ends the job."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._wake()

    def _wake(self) -> None:
        """Wake the loop, which waits for the inbox, so that it checks for failures."""
        self._inbox.put_nowait(inputs.TimerFired())

    _PERFORM: Mapping[type, Callable[[Supervisor, Any], Any]] = {
        do.SetTimer: _set_timer,
        do.Record: _record,
        do.Settle: lambda self, _: self._spawn(self._settle()),
        do.Send: _send,
        do.StartWorkers: _start_workers,
        do.Leave: lambda self, command: self._links.send(command.node, LEAVE),
        do.Dismiss: lambda self, command: self._links.dismiss(
            command.node, forget=command.forget, allocation=command.allocation
        ),
        do.AwaitReturn: lambda self, command: self._links.await_return(command.nodes),
        do.StartRunners: lambda self, command: self._processes.start_runners(command.nodes),
        do.ReleaseRunners: lambda self, _: self._processes.release_runners(),
        do.AskLaunch: lambda self, _: self._processes.ask_launch(),
        do.StartAgents: _start_agents,
        do.AdoptAgents: lambda self, command: self._processes.adopt_agents(command),
        do.KillAgents: lambda self, _: self._processes.kill_agents(),
        do.LetGo: lambda self, _: self._cluster.let_go(),
        do.AskAllocation: lambda self, command: self._spawn(self._allocations.ask(command)),
        do.GiveBack: lambda self, command: self._spawn(self._give_back(command)),
        do.EndAllocation: lambda self, command: self._spawn(self._allocations.end(command)),
        do.AskUnusable: lambda self, command: self._spawn(self._scheduler.ask_unusable(command)),
        do.AskWhyTerminated: lambda self, _: self._spawn(self._scheduler.ask_why_terminated()),
        do.AskTimeLeft: lambda self, _: self._spawn(self._scheduler.ask_time_left()),
        do.ProbeFolder: lambda self, command: self._spawn(self._probe_folder(command)),
        do.Requeue: lambda self, command: self._spawn(self._scheduler.requeue(command)),
    }


def _log_event(event: Event) -> None:
    """Log an event."""
    fields = {key: value for key, value in event.items() if key not in _NOT_LOGGED and value is not None}
    level = logging.DEBUG if event["event"] == "commit" else logging.INFO
    log.log(level, "%s: %s", event["event"], ", ".join(f"{key}={value}" for key, value in fields.items()))
