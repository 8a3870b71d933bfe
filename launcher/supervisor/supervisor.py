"""The supervisor: brings a job to its end through whatever happens to its nodes.

It runs on the batch host, or on another node once it has taken over, in the main thread of its process. Everything it
decides is a line in events.jsonl, and a supervisor that starts in a folder with events continues them: that is how a
job goes on after a requeue, and how one supervisor takes over from another, with the attempt that runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ckpt.timeouts import within
from launcher import domains
from launcher.clusters.cluster import Cluster
from launcher.history.events import Event, EventLog, read_events
from launcher.history.status import History
from launcher.jobfile import JobSpec
from launcher.runner.variables import attempt_environment
from launcher.stop_request import StopRequest
from launcher.supervisor.attempt import PREDECESSOR_LOST, RETURN_S, Attempt
from launcher.supervisor.faults import ENVIRONMENT, PREFLIGHT, SCHEDULER_LOST, START_TIMEOUT, Fault
from launcher.supervisor.folder import probe, read_secret, write_json
from launcher.supervisor.hang import HangDetector
from launcher.supervisor.ladder import Decision, Ladder
from launcher.supervisor.launch import Launch
from launcher.supervisor.links import Links, Notice
from launcher.supervisor.office import FolderRemoved, Office, Superseded
from launcher.supervisor.outcome import EXIT_CODES, REASONS, Ending, Outcome, kept, unsaved
from launcher.supervisor.own_checkpoints import OwnCheckpoints
from launcher.supervisor.past import Past
from launcher.supervisor.readiness import Readiness
from launcher.supervisor.recorder import Recorder
from launcher.supervisor.requests import HALT, OURS_TO_REQUEUE, Requests
from launcher.supervisor.requeue import Requeue
from launcher.supervisor.returns import Returns
from launcher.supervisor.roster import Roster
from launcher.supervisor.time_limit import until_near
from launcher.terms import newest

log = logging.getLogger(__name__)

STOP_LOOK_S = 1.0
_NOT_LOGGED = ("time", "event", "term", "traceback", "sources")


class Supervisor:
    """The state machine. Made and run by entry.py; the Host of its attempts."""

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
        self._begun_s = time.monotonic()
        self._inbox: asyncio.Queue[Notice] = asyncio.Queue()
        self._office = Office(job_dir, cluster)
        self._recorder = Recorder(events, self._office.check, self._on_superseded)
        self._take_over = take_over
        self._predecessor = self._node_taken_over_from()
        self._predecessor_is_silent = predecessor_is_silent
        self._is_superseded = self._has_ended = False
        self._holding: asyncio.Task[None] | None = None
        self._timing: asyncio.Task[None] | None = None
        self._asked: asyncio.Task[None] | None = None
        successors = [node for node in cluster.nodes if node != cluster.node] if cluster.node is not None else []
        successors.sort(key=lambda node: node == self._predecessor)  # last: it may be lost, or frozen
        self._links = Links(cluster.nodes, read_secret(job_dir), self._inbox, successors, cluster.restart_count)
        self._ladder = Ladder(spec.restart, cluster.can_requeue, tells_steps=spec.checkpoint is not None)
        self._own_checkpoints = OwnCheckpoints(spec.progress) if spec.progress is not None else None
        self._hang = HangDetector(spec.restart.hang_timeout_s, has_checkpoint=spec.checkpoint is not None)
        self._history = History()
        self._past = Past((), take_over=take_over is not None)
        self._out: dict[str, str] = {}
        # Where there is a spare it is the supervisor's node: the job then outlives its loss without a fault.
        in_order = sorted(cluster.nodes, key=lambda node: node == cluster.node)
        self._roster = Roster(in_order, spec.sizes, {}, cluster.topology.distance)
        self._launch = Launch(self, self._roster, self._links, cluster, job_dir)
        self._readiness = Readiness(self, self._roster, cluster, job_dir, self._launch)
        self._switches = domains.switches_of(cluster.topology, cluster.nodes)
        self._number = 0
        self._nodes: tuple[str, ...] | None = None  # of the attempt begun last
        self._step: int | None = None
        self._attempt_step: int | None = None
        self._warm: set[str] = set()
        self._unprepared: set[str] = set()  # nodes on which the job's Python does not load
        self._lost: set[str] = set()  # nodes that are out because they were not reached
        self._returns = Returns(self, self._links, cluster)
        self._to_requeue = Requeue(cluster, self._out)
        self._requeue = False  # whether the scheduler is to start the job again
        self._time_warning = asyncio.Event()
        self.requests = Requests(cluster.why_terminated, self._on_time_warning, self._on_request)

    async def run(self) -> Outcome:
        """The whole job, to its outcome; leaves nothing running. Where another supervisor takes over, all is left."""
        self._recorder.start()
        with self.requests.signals():
            try:
                return await self._supervise()
            except Superseded as error:
                return self._leave(str(error))
            finally:
                await self._recorder.close()

    async def _supervise(self) -> Outcome:
        try:
            await self._open()
            outcome = await self._attempts()
            if self._requeue:
                await self._readiness.written(self._office.confirm)
                outcome = await self._hand_back(outcome)
        except Superseded:
            raise
        except FolderRemoved as error:
            outcome = self._outcome("internal", str(error))
        except Exception as error:  # the last line of defence: say it, end everything, leave a result
            log.exception("internal error")
            outcome = self._outcome("internal", f"{type(error).__name__}: {error}; see log/supervisor.log")
        try:
            await self._readiness.written(self._office.confirm)
        except FolderRemoved as error:
            outcome = self._outcome("internal", str(error))
        await self._close(forget=outcome.name != "stopped")
        if outcome.name != "stopped":
            told = {"outcome": outcome.name, "reason": outcome.reason}
            self._has_ended = True
            self.record("job_end", **told, step=outcome.step, seconds=outcome.seconds)
            result = asdict(outcome) | {"run_id": self._cluster.run_id}
            await self._recorder.settled()
            with contextlib.suppress(FolderRemoved):
                await self._readiness.written(lambda: self._write_result(result))
        await self._recorder.settled()
        await self._readiness.written(self._events.flush)
        if outcome.name != "stopped":
            await asyncio.to_thread(self._cluster.end_job)
        return outcome

    async def next_notice(self, timeout_s: float | None) -> Notice | None:
        self._check_rule()
        try:
            notice = self._inbox.get_nowait()
        except asyncio.QueueEmpty:
            try:
                notice = await within(timeout_s, self._inbox.get())
            except asyncio.TimeoutError:
                return None
        await self._note(notice)
        return notice

    def post(self, notice: Notice) -> None:
        self._inbox.put_nowait(notice)

    def record(self, event: str, **fields: Any) -> None:
        self._check_rule()
        written = self._recorder.add(event, **fields)
        self._ladder.observe(written)
        self._hang.observe(written)
        self._history.add(written)
        _tell(written)

    def _check_rule(self) -> None:
        if self._is_superseded:
            raise Superseded("another supervisor has taken over")

    def see_step(self, step: int | None) -> int | None:
        if step is not None:
            self._attempt_step = max(step, self._attempt_step or 0)
            self._step = max(step, self._step or 0)
        return self._attempt_step

    async def look_at_own_checkpoints(self) -> None:
        if self._own_checkpoints is not None and (newest := await self._own_checkpoints.look()):
            self.record("own_checkpoint", file=newest.file, modified=newest.modified_s)

    def put_out(self, node: str, reason: str, *, environment: bool = False) -> None:
        if environment:
            self._unprepared.add(node)
        self._exclude(node, reason, **({"environment": True} if environment else {}))
        self._lost.discard(node)
        self._links.dismiss(node, forget=True)

    def lose(self, node: str, reason: str) -> None:
        """Goes on without a node that is not reached. It is taken back if its runner comes back."""
        if node not in self._roster.out:
            self._lost.add(node)
        self._exclude(node, reason, lost=True)

    def take_back(self, node: str) -> None:
        if node not in self._lost:
            return
        self._lost.discard(node)
        self._out.pop(node, None)
        self._roster.take_back(node)
        self.record("node_back", node=node)
        if self._links.has(node):
            self._add_ready(node, warm=self._links.state(node)["warm"])

    def _exclude(self, node: str, reason: str, **fields: Any) -> None:
        if node not in self._roster.out:
            self._roster.put_out(node, reason)
            self._out.setdefault(node, reason)
            self.record("node_out", node=node, reason=reason, **fields)

    def _add_ready(self, node: str, *, warm: bool) -> None:
        self._roster.add_ready(node)
        self._warm |= {node} if warm else set()
        self.record("node_ready", node=node, warm=warm)

    def miss(self, absent: Mapping[str, str]) -> None:
        """Goes on without nodes whose runners have not come back after a take-over; with what to say of each.

        They are lost. But where no runner at all is there, or Slurm is ending the job, it is runners that are gone
        and nothing is known of the nodes: we alone go without those, and the job's next start has them again.
        """
        are_lost = self._roster.ready and not self.requests.is_told
        for node, reason in absent.items():
            if are_lost:
                self.lose(node, reason)
            elif node not in self._roster.out:
                log.warning("%s: %s; that says nothing of the node", node, reason)
                self._roster.put_out(node, reason)
                self._links.dismiss(node, forget=False)

    async def _open(self) -> None:
        """Takes office: starts the server and, unless they run already, the runners."""
        cluster, spec = self._cluster, self._spec
        port = await self._links.open(cluster.listen_host)
        self._office.take(port, self._take_over)
        self._links.term = self._events.term = self._office.term
        self._launch.environment = {
            **spec.env,
            "HOLDFAST_RUN_ID": cluster.run_id,
            "HOLDFAST_JOB_DIR": str(self._job_dir),
            "HOLDFAST_RESTART_COUNT": str(cluster.restart_count),
            "HOLDFAST_SUPERVISOR": f"{cluster.host}:{port}",
            **domains.to_environment(self._switches),
        }
        taken = None
        if self._take_over is not None:
            taken = self._events.append("takeover", node=cluster.node, predecessor=self._predecessor)
        self._recall()
        is_heard = lambda: not self._links.is_isolated  # noqa: E731
        self._holding = asyncio.create_task(self._office.hold(is_heard, self._on_superseded, self._on_removed))
        self._timing = asyncio.create_task(self._stop_in_time())
        self._asked = asyncio.create_task(self._stop_when_asked())
        for node in self._roster.out.keys() - self._lost:
            self._links.dismiss(node, forget=True)
        if taken is not None:
            _tell(taken)
            if self._predecessor is not None and self._predecessor_is_silent:
                self.lose(self._predecessor, PREDECESSOR_LOST)
            if self._past.runners:
                self._links.await_return(self._past.runners)
                self._call_the_roll_later()
                return
        self.record(
            "job_start",
            run_id=cluster.run_id,
            cluster=cluster.name,
            nodes_requested=spec.nodes,
            spares=max(0, len(cluster.nodes) - spec.nodes),
            restart_count=cluster.restart_count,
        )
        if domains.wants_switches(spec.checkpoint) and len(self._switches) < len(cluster.nodes):
            what = "failure_domain: switch, but Slurm knows no switch of every node: parity is spread over nodes alone"
            self.record("problem", what=what)
        await self._put_unusable_out()
        await self._launch.begin()

    async def _put_unusable_out(self) -> None:
        for node, reason in (await self._readiness.unusable()).items():
            self.put_out(node, reason)

    async def _start_runners_again(self) -> None:
        """Where an attempt has lost every node at once, our own among them: it is the runners that are gone."""
        roster = self._roster
        if roster.ready or not self._lost or self.requests.is_told:
            return
        self.record("problem", what="all runners were lost at once: they are started again")
        for node in list(self._lost):
            self.take_back(node)
        await self._put_unusable_out()
        await self._launch.again()

    def _recall(self) -> None:
        """Learns what was decided so far. After `takeover` was written: what comes behind that line from the supervisor
        before us, stopped between its look at the terms and its write, does not count."""
        self._past = past = Past(read_events(self._job_dir / "events.jsonl"), take_over=self._take_over is not None)
        for event in past.events:
            self._ladder.observe(event)
            self._hang.observe(event)
            self._history.add(event)
        # The local cluster's nodes are new each time; a Slurm node that failed stays out for the job's life.
        self._out.update(past.out if self._cluster.can_requeue else {})
        for node in self._cluster.nodes:
            if node in self._out:
                self._roster.put_out(node, self._out[node])
        self._lost = past.lost if self._take_over is not None else set()
        self._number, self._step = past.next_attempt, past.step

    async def _attempts(self) -> Outcome:
        """Attempt after attempt, until one ends the job or the ladder does."""
        rung = "takeover" if self._take_over else "requeue" if self._number else "start"
        patient = True
        resumed = self._past.running_attempt()
        while True:
            if unwritable := await self._readiness.folder(self._probe):
                return self._outcome("internal", unwritable)
            if resumed is None:
                await self._readiness.nodes(patient=patient)
            patient = False
            nodes = self._choose() if resumed is None else tuple(resumed["nodes"])
            if resumed is not None:
                ending = await self._resume(resumed)
                resumed = None
            elif self.requests.any:
                ending = self._as_asked()
            elif nodes is None:
                out = ", ".join(f"{node} ({why})" for node, why in self._roster.out.items())
                reason = f"{len(self._roster.nodes)} nodes, {self._spec.sizes[-1]} needed, out of use: {out}"
                kind = ENVIRONMENT if self._unprepared >= set(self._roster.out) else START_TIMEOUT
                fault = Fault(kind=kind, node=None, reason=reason)
                self.record("fault", kind=fault.kind, reason=reason)
                ending = Ending(outcome="fault", faults=(fault,))
            else:
                ending = await self._attempt(nodes, rung)
            await self.requests.settled()
            if self.requests.any and ending.outcome == "fault":
                ending = replace(self._as_asked(), faults=ending.faults)
            if ending.outcome != "fault":
                self._requeue = ending.outcome == "stopped" and self.requests.stop in OURS_TO_REQUEUE
                return self._outcome(ending.outcome, self._why(ending))
            if ending.faults[0].kind == SCHEDULER_LOST and (silence := await self._readiness.scheduler()):
                return self._outcome("internal", silence)
            await self._start_runners_again()
            decision = self._decide(ending.faults[0], nodes or ())
            if decision.action == "stop":
                trace = ending.faults[0].traceback
                reason = f"{decision.reason}\n{trace.rstrip()}" if trace else decision.reason
                return self._outcome(decision.outcome or "internal", reason)
            if decision.action == "requeue":
                # Slurm would start a job again that is being cancelled, though its SIGTERM has yet to reach us.
                if await asyncio.to_thread(self._cluster.why_terminated) == "cancel":
                    self.requests.cancel()
                    return self._outcome("cancelled", REASONS["cancelled"])
                self.record("stop_requested", reason="requeue", detail=decision.reason)
                self._requeue = True
                return self._outcome("stopped", decision.reason)
            rung = decision.rung or "workers"
            await self._readiness.backoff(decision.delay_s, decision.reason)

    def _choose(self) -> tuple[str, ...] | None:
        """The next attempt's nodes; a node on which attempts failed again and again makes way for a spare."""
        suspects, before = self._ladder.suspects, self._nodes
        self._nodes = nodes = self._roster.choose(suspects)
        for node in before or ():
            if nodes is not None and node in suspects and node not in (*nodes, *self._roster.out):
                self.record("problem", node=node, what="attempts failed on it again and again: a spare takes its place")
        return nodes

    def _as_asked(self) -> Ending:
        return Ending(outcome=self.requests.outcome)

    def _why(self, ending: Ending) -> str:
        """The reason of an outcome that is no fault's."""
        if ending.outcome in REASONS:
            return REASONS[ending.outcome]
        status = self._history.status()
        halted = kept(status, ending.faults) if ending.outcome == "halted" else ""
        return "; ".join(filter(None, (halted, unsaved(status))))

    def _decide(self, fault: Fault, nodes: tuple[str, ...]) -> Decision:
        roster = self._roster
        changed = any(node in roster.out for node in nodes)
        named = fault.node is None or fault.node in fault.reason
        reason = fault.reason if named else f"{fault.node}: {fault.reason}"
        decision = self._ladder.decide(
            reason,
            nodes_suffice=roster.can_suffice,
            nodes_changed=changed,
            spare_left=not self._ladder.suspects >= set(roster.spares),
        )
        if fault.kind == ENVIRONMENT and decision.action != "restart" and not self._warm:
            reason = f"on none of the job's nodes its Python loads what it needs: {reason}"  # nor on others, then
            return Decision(action="stop", outcome="user_error", reason=reason)
        return decision

    async def _attempt(self, nodes: tuple[str, ...], rung: str) -> Ending:
        number, self._number = self._number, self._number + 1
        rung = "shrink" if self._roster.has_shrunk else rung
        self._attempt_step = None
        await self.look_at_own_checkpoints()
        self.record("attempt_start", attempt=number, nodes=list(nodes), spares=self._roster.spares, rung=rung)
        await self._recorder.settled()  # the number must not be given twice
        self._check_rule()
        return await self._end(number, self._make_attempt(number, nodes).run())

    async def _resume(self, start: Event) -> Ending:
        """Goes on with the attempt that the supervisor before us began."""
        number, self._nodes = start["attempt"], tuple(start["nodes"])
        nodes = self._nodes
        self._roster.resume(nodes)
        attempt = self._make_attempt(number, nodes)
        return await self._end(number, attempt.resume(self._past.events, self._predecessor, self._roster.out))

    async def _end(self, number: int, life: Awaitable[Ending]) -> Ending:
        ending = await life
        self.record("attempt_end", attempt=number, outcome=ending.outcome, step=self._attempt_step)
        return ending

    def _make_attempt(self, number: int, nodes: tuple[str, ...]) -> Attempt:
        agents = None
        if self._spec.checkpoint is not None:
            agents = attempt_environment(
                self._spec, self._cluster.run_id, self._job_dir, number, list(nodes), self._switches
            )
            agents |= {"HOLDFAST_ROLE": "agent", "HOLDFAST_RESTART_COUNT": str(self._cluster.restart_count)}
        return Attempt(
            number,
            nodes,
            host=self,
            links=self._links,
            cluster=self._cluster,
            agent_environment=agents,
            log_dir=self._log_dir(number),
            hang=self._hang,
        )

    async def _note(self, notice: Notice) -> None:
        """What a notice means for the job as a whole."""
        node, body = notice.node, notice.body
        if notice.kind == "folder_removed":
            raise FolderRemoved(body["reason"])
        elif notice.kind == "signal":
            self.requests.judge_sigterm(str(node))
        elif notice.kind == "isolated":
            log.warning("most nodes are silent: waiting whether it is this one that is cut off")
            self._cluster.let_go()
        elif notice.kind == "roll_call" and self._links.is_isolated:  # it may be we who are cut off
            self._call_the_roll_later()
        elif notice.kind == "late":
            for absent in self._roster.absent:
                self.put_out(absent, f"its runner did not start; see log/runner-{absent}.log and log/srun-runners.log")
        elif notice.kind == "roll_call":
            late = f"its runner did not come back within {RETURN_S:g} s of the take-over"
            self.miss(dict.fromkeys(self._roster.absent, late))
        elif notice.kind == "killed" and node in self._lost:
            self._returns.killed(node, body["attempt"], body["left"])
        elif notice.kind == "hello" and node in self._lost:
            self._returns.came(node, body["attempt"])
        elif node is None or node in self._roster.out:
            return
        elif notice.kind == "hello":
            if body["problem"]:
                self.record("fault", kind=PREFLIGHT, node=node, reason=body["problem"])
                self.put_out(node, body["problem"])
            else:
                self._add_ready(node, warm=body["warm"])
        elif notice.kind == "heartbeat" and body["warm"] and node not in self._warm:
            self._warm.add(node)
            self.record("node_ready", node=node, warm=True)
        elif notice.kind == "broken":
            self.put_out(node, body["reason"], environment=body["environment"])
        elif notice.kind == "lost" and not await self._launch.lost(node):
            self.lose(node, body["reason"])

    def _call_the_roll_later(self) -> None:
        asyncio.get_running_loop().call_later(RETURN_S, self.post, Notice(kind="roll_call"))

    def _on_request(self, reason: str | None) -> None:
        if reason is not None and not self._has_ended:  # later Slurm ends what is left of the job, us among it
            self.record("stop_requested", reason=reason)
            if reason == "batch_script_lost":
                self._to_requeue.begin()
        self.post(Notice(kind="request"))

    def _on_time_warning(self) -> None:
        log.info("warned: the time limit is near")
        self._time_warning.set()

    async def _stop_in_time(self) -> None:
        await until_near(self._cluster.time_left_s, self._time_warning, has_just_begun=self._take_over is None)
        self.requests.ask_stop("time_limit")

    async def _stop_when_asked(self) -> None:
        """Until a user's request to stop is due. The file system may be slow to answer: it is asked in a thread."""
        while True:
            request = await asyncio.to_thread(StopRequest.read, self._job_dir)
            if request is not None and request.is_due(self._step, time.time()):
                return self.requests.ask_stop(HALT)
            await asyncio.sleep(STOP_LOOK_S)

    async def _hand_back(self, outcome: Outcome) -> Outcome:
        """Has the scheduler start the job again. It then ends this one: what is left to do must not take long."""
        why_not = await self._to_requeue.finish()
        if why_not is None:
            return outcome
        reason = f"{outcome.reason}; not requeued: {why_not}; submit the job again in the same folder"
        return self._outcome("internal" if self.requests.stop else "too_few_nodes", reason)

    def _on_superseded(self) -> None:
        self._is_superseded = True
        self.post(Notice(kind="superseded"))

    def _on_removed(self, error: FolderRemoved) -> None:
        self.post(Notice(kind="folder_removed", body={"reason": str(error)}))

    def _leave(self, why: str) -> Outcome:
        """Another supervisor rules: drops everything and writes nothing. What we started ends with this process."""
        log.warning("leaving the job to another supervisor: %s", why)
        self._links.abort()
        self._cluster.let_go()
        return self._outcome("superseded", why)

    def _node_taken_over_from(self) -> str | None:
        """None where the supervisor before us was on our node, or there was none."""
        term = newest(self._job_dir) if self._take_over is not None else None
        return term.node if term is not None and term.node != self._cluster.node else None

    async def _close(self, *, forget: bool) -> None:
        """Ends everything that this job started."""
        for node in self._cluster.nodes:
            self._links.dismiss(node, forget=forget)
        await self._links.close()
        await self._cluster.close(forget=forget)

    def _write_result(self, result: dict[str, Any]) -> None:
        self._office.confirm()
        write_json(self._job_dir / "result.json", result)
        StopRequest.remove(self._job_dir)

    def _probe(self) -> None:
        """Whether the next attempt's logs can be written, into the folder that is ours."""
        self._office.confirm()
        probe(self._log_dir(self._number))

    def _log_dir(self, attempt: int) -> Path:
        return self._job_dir / "log" / f"attempt-{attempt}"

    def _outcome(self, name: str, reason: str = "") -> Outcome:
        seconds = round(time.monotonic() - self._begun_s, 3)
        return Outcome(name=name, step=self._step, exit_code=EXIT_CODES[name], reason=reason, seconds=seconds)


def _tell(event: Event) -> None:
    """An event's line in the log."""
    said = {key: value for key, value in event.items() if key not in _NOT_LOGGED and value is not None}
    level = logging.DEBUG if event["event"] == "commit" else logging.INFO
    log.log(level, "%s: %s", event["event"], ", ".join(f"{key}={value}" for key, value in said.items()))
