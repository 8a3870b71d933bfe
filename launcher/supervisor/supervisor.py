"""The supervisor: brings a job to its end through whatever happens to its nodes.

It runs on the batch host, or on another node once it has taken over, in the main thread of its process. Everything it
decides is a line in events.jsonl, and a supervisor that starts in a folder with events continues them: that is how a
job goes on after a requeue, and how one supervisor takes over from another, with the attempt that runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launcher.clusters import open_cluster
from launcher.clusters.cluster import Cluster
from launcher.errors import LauncherError
from launcher.history.events import Event, EventLog, read_events
from launcher.jobfile import JobSpec
from launcher.runner.runner import attempt_environment
from launcher.supervisor.attempt import RETURN_S, Attempt
from launcher.supervisor.faults import PREFLIGHT, SCHEDULER_LOST, START_TIMEOUT, Fault
from launcher.supervisor.folder import log_to, make_folders, prepare, probe, read_secret, until_written, write_json
from launcher.supervisor.hang import HangDetector
from launcher.supervisor.keeper import Keeper
from launcher.supervisor.ladder import Decision, Ladder
from launcher.supervisor.links import Links, Notice
from launcher.supervisor.office import Office, Superseded
from launcher.supervisor.outcome import EXIT_CODES, REASONS, Ending, Outcome
from launcher.supervisor.requests import Requests
from launcher.supervisor.roster import Roster
from launcher.terms import newest
from slurm import SlurmError

log = logging.getLogger(__name__)

NODE_START_TIMEOUT_S = 120.0
FOLDER_TIMEOUT_S = 600.0  # a shared file system may be full, or fail over, for a while
SCHEDULER_TIMEOUT_S = 1800.0  # a controller is restarted, or its backup takes over
SCHEDULER_SETTLE_S = 5.0  # a controller that is back refuses steps until its nodes have registered (seen on 22.05)
_ASK_AGAIN_S = 1.0
_NOT_LOGGED = ("time", "event", "traceback", "sources")
_ALL_NODES_GRACE_S = 3.0  # once enough nodes have come, how long to wait for the others before choosing


def supervise(spec: JobSpec, job_dir: Path, cluster: str) -> Outcome:
    """Runs a job to its end. Blocks; call it in the main thread, where it handles SIGTERM, SIGUSR2 and SIGINT.

    SIGINT ends the job at once. SIGTERM (Slurm requeues or preempts the job) and SIGUSR2 (its time limit is near) have
    all ranks stop at one step boundary and save; after SIGUSR2 the job is then requeued from here.

    Args:
        spec: the job.
        job_dir: its folder; made if missing, continued if it holds a job already.
        cluster: "slurm" or "local".

    Raises:
        LauncherError, SlurmError: the job could not be begun; nothing was started.
    """
    job_dir = job_dir.absolute()
    make_folders(job_dir)
    if cluster != "slurm":
        return supervise_here(spec, job_dir, cluster)
    open_cluster(cluster, spec, job_dir)  # raises here what it has to
    return Keeper(lambda after: supervise_here(spec, job_dir, cluster, take_over=after), job_dir).run()


def supervise_here(spec: JobSpec, job_dir: Path, cluster: str, *, take_over: int | None = None) -> Outcome:
    """A supervisor's life in this process.

    Args:
        spec, job_dir, cluster: as for `supervise`; the folder is there.
        take_over: the term of the supervisor that is gone; None starts the job, or goes on with it after a requeue.

    Returns:
        The outcome; "superseded" where another supervisor has taken over.
    """
    events = EventLog(job_dir / "events.jsonl", lock=cluster != "slurm")
    try:
        if take_over is None:
            prepare(spec, job_dir)
        with log_to(job_dir / "log" / "supervisor.log"):
            supervisor = Supervisor(spec, job_dir, open_cluster(cluster, spec, job_dir), events, take_over)
            return asyncio.run(supervisor.run())
    finally:
        events.close()


class Supervisor:
    """The state machine. Made and run by `supervise`; the Host of its attempts."""

    def __init__(
        self, spec: JobSpec, job_dir: Path, cluster: Cluster, events: EventLog, take_over: int | None = None
    ) -> None:
        self._spec = spec
        self._job_dir = job_dir
        self._cluster = cluster
        self._events = events
        self._begun_s = time.monotonic()
        self._inbox: asyncio.Queue[Notice] = asyncio.Queue()
        self._office = Office(job_dir, cluster)
        self._take_over = take_over
        self._predecessor: str | None = None
        self._is_superseded = self._has_ended = False
        self._holding: asyncio.Task[None] | None = None
        successors = [node for node in cluster.nodes if node != cluster.node] if cluster.node is not None else []
        self._links = Links(cluster.nodes, read_secret(job_dir), self._inbox, successors)
        self._ladder = Ladder(spec.restart, cluster.can_requeue)
        self._hang = HangDetector(spec.restart.hang_timeout_s, has_checkpoint=spec.checkpoint is not None)
        self._history = history = read_events(job_dir / "events.jsonl")
        for event in history:
            self._ladder.observe(event)
            self._hang.observe(event)
        # The local cluster's nodes are new each time; a Slurm node that failed stays out for the job's life.
        self._out = {e["node"]: e["reason"] for e in history if e["event"] == "node_out" and cluster.can_requeue}
        # Where there is a spare it is the supervisor's node: the job then outlives its loss without a fault.
        in_order = sorted(cluster.nodes, key=lambda node: node == cluster.node)
        self._roster = Roster(in_order, spec.nodes, self._out)
        self._number = max((e["attempt"] + 1 for e in history if e["event"] == "attempt_start"), default=0)
        self._step: int | None = max((e["step"] or 0 for e in history if e["event"] == "commit"), default=None)
        self._attempt_step: int | None = None
        self._warm: set[str] = set()
        self._requeue = False  # whether the scheduler is to start the job again
        self.requests = Requests(cluster.why_terminated, self._on_request)

    async def run(self) -> Outcome:
        """The whole job, to its outcome; leaves nothing running. Where another supervisor takes over, all is left."""
        with self.requests.signals():
            try:
                return await self._supervise()
            except Superseded as error:
                return self._leave(str(error))

    async def _supervise(self) -> Outcome:
        try:
            await self._open()
            outcome = await self._attempts()
            if self._requeue:
                outcome = await self._hand_back(outcome)
        except Superseded:
            raise
        except Exception as error:  # the last line of defence: say it, end everything, leave a result
            log.exception("internal error")
            outcome = self._outcome("internal", f"{type(error).__name__}: {error}; see log/supervisor.log")
        self._office.check()
        await self._close(forget=outcome.name != "stopped")
        if outcome.name != "stopped":
            told = {"outcome": outcome.name, "reason": outcome.reason}
            self._has_ended = True
            self.record("job_end", **told, step=outcome.step, seconds=outcome.seconds)
            result = asdict(outcome) | {"run_id": self._cluster.run_id}
            await self._until_written(lambda: write_json(self._job_dir / "result.json", result))
        await self._until_written(self._events.flush)
        if outcome.name != "stopped":
            await asyncio.to_thread(self._cluster.end_job)
        return outcome

    async def next_notice(self, timeout_s: float | None) -> Notice | None:
        if self._is_superseded:
            raise Superseded("another supervisor has taken over")
        try:
            notice = self._inbox.get_nowait()
        except asyncio.QueueEmpty:
            try:
                notice = await asyncio.wait_for(self._inbox.get(), timeout_s)
            except asyncio.TimeoutError:
                return None
        self._note(notice)
        return notice

    def post(self, notice: Notice) -> None:
        self._inbox.put_nowait(notice)

    def record(self, event: str, **fields: Any) -> None:
        self._office.check()
        written = self._events.append(event, **fields)
        self._ladder.observe(written)
        self._hang.observe(written)
        said = {key: value for key, value in written.items() if key not in _NOT_LOGGED and value is not None}
        level = logging.DEBUG if event == "commit" else logging.INFO
        log.log(level, "%s: %s", event, ", ".join(f"{key}={value}" for key, value in said.items()))

    def see_step(self, step: int | None) -> int | None:
        if step is not None:
            self._attempt_step = max(step, self._attempt_step or 0)
            self._step = max(step, self._step or 0)
        return self._attempt_step

    def put_out(self, node: str, reason: str) -> None:
        if node not in self._roster.out:
            self._roster.put_out(node, reason)
            self._out.setdefault(node, reason)
            self.record("node_out", node=node, reason=reason)
        self._links.dismiss(node, forget=True)

    async def _open(self) -> None:
        """Takes office: starts the server and, unless they run already, the runners."""
        cluster, spec = self._cluster, self._spec
        port = await self._links.open(cluster.listen_host)
        self._predecessor = self._find_predecessor()
        self._office.take(port, self._take_over)
        self._links.term = self._office.term
        self._holding = asyncio.create_task(self._office.hold(lambda: not self._links.is_isolated, self._on_superseded))
        for node in self._roster.out:
            self._links.dismiss(node, forget=True)
        if self._take_over is not None:
            self.record("takeover", node=cluster.node, term=self._office.term, predecessor=self._predecessor)
            if any(event["event"] == "node_ready" for event in self._last_run()):
                asyncio.get_running_loop().call_later(RETURN_S, self.post, Notice(kind="roll_call"))
                return
        self.record(
            "job_start",
            run_id=cluster.run_id,
            cluster=cluster.name,
            nodes_requested=spec.nodes,
            spares=len(cluster.nodes) - spec.nodes,
            restart_count=cluster.restart_count,
        )
        await cluster.start_runners(
            {
                **spec.env,
                "HOLDFAST_RUN_ID": cluster.run_id,
                "HOLDFAST_JOB_DIR": str(self._job_dir),
                "HOLDFAST_SUPERVISOR": f"{cluster.host}:{port}",
            }
        )

    def _find_predecessor(self) -> str | None:
        """The node of the supervisor before us, where it is not ours."""
        term = newest(self._job_dir) if self._take_over is not None else None
        return term.node if term is not None and term.node != self._cluster.node else None

    def _last_run(self) -> list[Event]:
        """What has happened since the job was last started by the scheduler, before we came."""
        starts = [index for index, event in enumerate(self._history) if event["event"] == "job_start"]
        return self._history[starts[-1] :] if starts else []

    def _running_attempt(self) -> Event | None:
        """The attempt whose workers run while we take over."""
        run = self._last_run() if self._take_over is not None else []
        starts = [event for event in run if event["event"] == "attempt_start"]
        since = [event["event"] for event in run if starts and event.get("attempt") == starts[-1]["attempt"]]
        runs = "workers_started" in since and "attempt_end" not in since
        return starts[-1] if runs and not set(starts[-1]["nodes"]) & set(self._out) else None

    async def _attempts(self) -> Outcome:
        """Attempt after attempt, until one ends the job or the ladder does."""
        rung = "takeover" if self._take_over else "requeue" if self._number else "start"
        patient = True
        resumed = self._running_attempt()
        while True:
            if unwritable := await self._wait_for_folder():
                return self._outcome("internal", unwritable)
            if resumed is None:
                await self._gather(patient)
            if not self._roster.absent:
                await self._cluster.release_runners()
            patient = False
            nodes = self._roster.choose() if resumed is None else tuple(resumed["nodes"])
            if resumed is not None:
                ending = await self._resume(resumed)
                resumed = None
            elif self.requests.any:
                ending = Ending(outcome="cancelled" if self.requests.cancelled else "stopped")
            elif nodes is None:
                out = ", ".join(f"{node} ({why})" for node, why in self._roster.out.items())
                reason = f"{len(self._roster.nodes)} nodes, {self._spec.nodes} needed, out of use: {out}"
                fault = Fault(kind=START_TIMEOUT, node=None, reason=reason)
                self.record("fault", kind=fault.kind, reason=reason)
                ending = Ending(outcome="fault", faults=(fault,))
            else:
                ending = await self._attempt(nodes, rung)
            if ending.outcome == "fault" and self.requests.stop:
                ending = Ending(outcome="stopped")
            if ending.outcome != "fault":
                self._requeue = ending.outcome == "stopped" and self.requests.stop in ("time_limit", "preempted")
                return self._outcome(ending.outcome, REASONS.get(ending.outcome, ""))
            if ending.faults[0].kind == SCHEDULER_LOST and (silence := await self._wait_for_scheduler()):
                return self._outcome("internal", silence)
            decision = self._decide(ending.faults[0], nodes or ())
            if decision.action == "stop":
                trace = ending.faults[0].traceback if decision.outcome == "user_error" else None
                reason = f"{decision.reason}\n{trace.rstrip()}" if trace else decision.reason
                return self._outcome(decision.outcome or "internal", reason)
            if decision.action == "requeue":
                self.record("stop_requested", reason="requeue", detail=decision.reason)
                self._requeue = True
                return self._outcome("stopped", decision.reason)
            rung = decision.rung or "workers"

    def _decide(self, fault: Fault, nodes: tuple[str, ...]) -> Decision:
        roster = self._roster
        changed = any(node in roster.out for node in nodes)
        named = fault.node is None or fault.node in fault.reason
        reason = fault.reason if named else f"{fault.node}: {fault.reason}"
        return self._ladder.decide(reason, nodes_suffice=roster.can_suffice, nodes_changed=changed)

    async def _gather(self, patient: bool) -> None:
        """Waits until enough nodes are ready; if patient, a moment longer for the others, to choose among all."""
        roster = self._roster
        begun_s = time.monotonic()
        enough_s: float | None = None
        while not roster.is_complete and roster.can_suffice and not self.requests.any:
            now_s = time.monotonic()
            deadline_s = begun_s + NODE_START_TIMEOUT_S
            if roster.is_enough:
                enough_s = now_s if enough_s is None else enough_s
                deadline_s = enough_s + (_ALL_NODES_GRACE_S if patient else 0.0)
            if now_s >= deadline_s:
                if not roster.is_enough:
                    for node in roster.absent:
                        late = f"its runner did not report within {NODE_START_TIMEOUT_S:g} s; see log/runner-{node}.log"
                        self.put_out(node, late)
                break
            await self.next_notice(deadline_s - now_s)

    async def _wait_for_folder(self) -> str | None:
        """Waits until the next attempt's logs can be written, as no worker starts without; why not, after too long."""
        log_dir = self._log_dir(self._number)
        why = await until_written(lambda: probe(log_dir), timeout_s=0.0, give_up=lambda: True)
        if why is None or self.requests.any:
            return None
        what = f"the job's folder cannot be written ({why}); no attempt starts before: make room in {self._job_dir}"
        self.record("problem", what=what)
        why = await self._until_written(lambda: probe(log_dir))
        if why is None or self.requests.any:
            return None
        return f"the job's folder could not be written for {FOLDER_TIMEOUT_S:g} s ({why}); make room, submit again"

    async def _wait_for_scheduler(self) -> str | None:
        """Waits until the scheduler can start processes again; what it last said, after too long."""
        deadline_s = time.monotonic() + SCHEDULER_TIMEOUT_S
        while not self.requests.any:
            try:
                await asyncio.to_thread(self._cluster.unusable, self._roster.ready)
                await asyncio.sleep(SCHEDULER_SETTLE_S)
                break
            except SlurmError as error:
                if time.monotonic() >= deadline_s:
                    return f"the scheduler did not answer for {SCHEDULER_TIMEOUT_S:g} s: {error}; submit the job again"
            await asyncio.sleep(_ASK_AGAIN_S)
        return None

    async def _until_written(self, write: Callable[[], None]) -> str | None:
        return await until_written(write, timeout_s=FOLDER_TIMEOUT_S, give_up=lambda: self.requests.any)

    async def _attempt(self, nodes: tuple[str, ...], rung: str) -> Ending:
        number, self._number = self._number, self._number + 1
        self._attempt_step = None
        self.record("attempt_start", attempt=number, nodes=list(nodes), spares=self._roster.spares, rung=rung)
        return await self._end(number, self._make_attempt(number, nodes).run())

    async def _resume(self, start: Event) -> Ending:
        """Goes on with the attempt that the supervisor before us began."""
        number, nodes = start["attempt"], tuple(start["nodes"])
        self._roster.resume(nodes)
        attempt = self._make_attempt(number, nodes)
        return await self._end(number, attempt.resume(self._history, self._predecessor))

    async def _end(self, number: int, life: Awaitable[Ending]) -> Ending:
        ending = await life
        self.record("attempt_end", attempt=number, outcome=ending.outcome, step=self._attempt_step)
        return ending

    def _make_attempt(self, number: int, nodes: tuple[str, ...]) -> Attempt:
        agents = None
        if self._spec.checkpoint is not None:
            agents = attempt_environment(self._spec, self._cluster.run_id, self._job_dir, number, list(nodes))
            agents["HOLDFAST_ROLE"] = "agent"
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

    def _note(self, notice: Notice) -> None:
        """What a notice means for the job as a whole."""
        node, body = notice.node, notice.body
        if notice.kind == "signal":
            self.requests.judge_sigterm(str(node))
        elif notice.kind == "isolated":
            log.warning("most nodes are silent: waiting whether it is this one that is cut off")
            self._cluster.let_go()
        elif notice.kind == "roll_call":
            for absent in self._roster.absent:
                self.put_out(absent, f"its runner did not come back within {RETURN_S:g} s of the take-over")
        elif node is None or node in self._roster.out:
            return
        elif notice.kind == "hello":
            if body["problem"]:
                self.record("fault", kind=PREFLIGHT, node=node, reason=body["problem"])
                self.put_out(node, body["problem"])
            else:
                self._roster.add_ready(node)
                self._warm |= {node} if body["warm"] else set()
                self.record("node_ready", node=node, warm=body["warm"])
        elif notice.kind == "heartbeat" and body["warm"] and node not in self._warm:
            self._warm.add(node)
            self.record("node_ready", node=node, warm=True)
        elif notice.kind in ("lost", "broken"):
            self.put_out(node, body["reason"])

    def _on_request(self, reason: str | None) -> None:
        if reason is not None and not self._has_ended:  # later Slurm ends what is left of the job, us among it
            self.record("stop_requested", reason=reason)
        self.post(Notice(kind="request"))

    async def _hand_back(self, outcome: Outcome) -> Outcome:
        """Has the scheduler start the job again. It then ends this one: what is left to do must not take long."""
        try:
            await asyncio.to_thread(self._cluster.requeue, tuple(self._out))
        except (LauncherError, SlurmError) as error:
            reason = f"{outcome.reason}; not requeued: {error}; submit the job again in the same folder"
            return self._outcome("internal" if self.requests.stop else "too_few_nodes", reason)
        return outcome

    def _on_superseded(self) -> None:
        self._is_superseded = True
        self.post(Notice(kind="superseded"))

    def _leave(self, why: str) -> Outcome:
        """Another supervisor rules: drops everything and writes nothing. What we started ends with this process."""
        log.warning("leaving the job to another supervisor: %s", why)
        self._links.abort()
        self._cluster.let_go()
        return self._outcome("superseded", why)

    async def _close(self, *, forget: bool) -> None:
        """Ends everything that this job started."""
        for node in self._cluster.nodes:
            self._links.dismiss(node, forget=forget)
        await self._links.close()
        await self._cluster.close(forget=forget)

    def _log_dir(self, attempt: int) -> Path:
        return self._job_dir / "log" / f"attempt-{attempt}"

    def _outcome(self, name: str, reason: str = "") -> Outcome:
        seconds = round(time.monotonic() - self._begun_s, 3)
        return Outcome(name=name, step=self._step, exit_code=EXIT_CODES[name], reason=reason, seconds=seconds)
