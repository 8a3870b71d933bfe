"""The supervisor: brings a job to its end through whatever happens to its nodes.

It runs on the batch host, in the main thread of its process. Everything it decides is a line in events.jsonl, and a
supervisor that starts in a folder with events continues them: that is how a job goes on after a requeue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ckpt import durable_write
from launcher.clusters import open_cluster
from launcher.clusters.cluster import Cluster
from launcher.errors import LauncherError
from launcher.history.events import EventLog, read_events
from launcher.jobfile import JobSpec
from launcher.runner.runner import attempt_environment
from launcher.supervisor.attempt import Attempt, Ending, Requests
from launcher.supervisor.faults import PREFLIGHT, START_TIMEOUT, Fault
from launcher.supervisor.hang import HangDetector
from launcher.supervisor.ladder import Decision, Ladder
from launcher.supervisor.links import Links, Notice
from launcher.supervisor.roster import Roster
from slurm import SlurmError

log = logging.getLogger(__name__)

EXIT_CODES = {
    "done": 0,
    "stopped": 0,
    "internal": 1,
    "user_error": 10,
    "no_progress": 11,
    "too_few_nodes": 12,
    "cancelled": 13,
}
NODE_START_TIMEOUT_S = 120.0
_REASONS = {
    "cancelled": "ended from outside: cancelled, or out of time",
    "stopped": "stopped at a step boundary; the job goes on from there when it starts again",
}
_NOT_LOGGED = ("time", "event", "traceback", "sources")
_ALL_NODES_GRACE_S = 3.0  # once enough nodes have come, how long to wait for the others before choosing


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        name: done, stopped (to go on after a requeue), user_error, no_progress, too_few_nodes, cancelled or internal.
        step: the newest finished step; None if none is known.
        exit_code: the exit code that says so.
        reason: why, in words; empty for done.
        seconds: since this supervisor started.
    """

    name: str
    step: int | None
    exit_code: int
    reason: str
    seconds: float


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
    _make_folders(job_dir)
    events = EventLog(job_dir / "events.jsonl")
    try:
        _prepare(spec, job_dir)
        with _logging(job_dir / "log" / "supervisor.log"):
            supervisor = Supervisor(spec, job_dir, open_cluster(cluster, spec, job_dir), events)
            return asyncio.run(supervisor.run())
    finally:
        events.close()


class Supervisor:
    """The state machine. Made and run by `supervise`; the Host of its attempts."""

    def __init__(self, spec: JobSpec, job_dir: Path, cluster: Cluster, events: EventLog) -> None:
        self._spec = spec
        self._job_dir = job_dir
        self._cluster = cluster
        self._events = events
        self._begun_s = time.monotonic()
        self._inbox: asyncio.Queue[Notice] = asyncio.Queue()
        self._links = Links(cluster.nodes, bytes.fromhex((job_dir / "secret").read_text()), self._inbox)
        self._ladder = Ladder(spec.restart, cluster.can_requeue)
        self._hang = HangDetector(spec.restart.hang_timeout_s, has_checkpoint=spec.checkpoint is not None)
        history = read_events(job_dir / "events.jsonl")
        for event in history:
            self._ladder.observe(event)
            self._hang.observe(event)
        # The local cluster's nodes are new each time; a Slurm node that failed stays out for the job's life.
        self._out = {e["node"]: e["reason"] for e in history if e["event"] == "node_out" and cluster.can_requeue}
        self._roster = Roster(cluster.nodes, spec.nodes, self._out)
        self._number = max((e["attempt"] + 1 for e in history if e["event"] == "attempt_start"), default=0)
        self._step: int | None = max((e["step"] or 0 for e in history if e["event"] == "commit"), default=None)
        self._attempt_step: int | None = None
        self._warm: set[str] = set()
        self._judging: asyncio.Task[None] | None = None
        self._requeue = False  # whether the scheduler is to start the job again
        self.requests = Requests()

    async def run(self) -> Outcome:
        """The whole job, to its outcome; leaves nothing running."""
        with self._signals():
            try:
                await self._open()
                outcome = await self._attempts()
                if self._requeue:
                    outcome = await self._hand_back(outcome)
            except Exception as error:  # the last line of defence: say it, end everything, leave a result
                log.exception("internal error")
                outcome = self._outcome("internal", f"{type(error).__name__}: {error}; see log/supervisor.log")
            await self._close(forget=outcome.name != "stopped")
        if outcome.name != "stopped":
            told = {"outcome": outcome.name, "reason": outcome.reason}
            self.record("job_end", **told, step=outcome.step, seconds=outcome.seconds)
            _write_json(self._job_dir / "result.json", asdict(outcome) | {"run_id": self._cluster.run_id})
        return outcome

    async def next_notice(self, timeout_s: float | None) -> Notice | None:
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
        """Starts the server and the runners."""
        cluster, spec = self._cluster, self._spec
        port = await self._links.open(cluster.listen_host)
        _write_json(self._job_dir / "supervisor.json", {"host": cluster.host, "port": port, "pid": os.getpid()})
        self.record(
            "job_start",
            run_id=cluster.run_id,
            cluster=cluster.name,
            nodes_requested=spec.nodes,
            spares=len(cluster.nodes) - spec.nodes,
            restart_count=cluster.restart_count,
        )
        for node in self._roster.out:
            self._links.dismiss(node, forget=True)
        await cluster.start_runners(
            {
                **spec.env,
                "HOLDFAST_RUN_ID": cluster.run_id,
                "HOLDFAST_JOB_DIR": str(self._job_dir),
                "HOLDFAST_SUPERVISOR": f"{cluster.host}:{port}",
            }
        )

    async def _attempts(self) -> Outcome:
        """Attempt after attempt, until one ends the job or the ladder does."""
        rung = "requeue" if self._number else "start"
        patient = True
        while True:
            await self._gather(patient)
            patient = False
            nodes = self._roster.choose()
            if self.requests.cancelled or self.requests.stop:
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
                return self._outcome(ending.outcome, _REASONS.get(ending.outcome, ""))
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
        while roster.absent and roster.can_suffice and not (self.requests.cancelled or self.requests.stop):
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

    async def _attempt(self, nodes: tuple[str, ...], rung: str) -> Ending:
        number, self._number = self._number, self._number + 1
        self._attempt_step = None
        log_dir = self._job_dir / "log" / f"attempt-{number}"
        self.record("attempt_start", attempt=number, nodes=list(nodes), spares=self._roster.spares, rung=rung)
        agents = None
        if self._spec.checkpoint is not None:
            agents = attempt_environment(self._spec, self._cluster.run_id, self._job_dir, number, list(nodes))
            agents["HOLDFAST_ROLE"] = "agent"
        attempt = Attempt(
            number,
            nodes,
            host=self,
            links=self._links,
            cluster=self._cluster,
            agent_environment=agents,
            log_dir=log_dir,
            hang=self._hang,
        )
        ending = await attempt.run()
        self.record("attempt_end", attempt=number, outcome=ending.outcome, step=self._attempt_step)
        return ending

    def _note(self, notice: Notice) -> None:
        """What a notice means for the job as a whole."""
        node, body = notice.node, notice.body
        if notice.kind in ("signal", "sigterm"):
            self._judge_sigterm(notice)
        elif node is None or node in self._roster.out:
            return
        elif notice.kind == "hello":
            if body["problem"]:
                self.record("fault", kind=PREFLIGHT, node=node, reason=body["problem"])
                self.put_out(node, body["problem"])
            else:
                self._roster.add_ready(node)
                self.record("node_ready", node=node, warm=body["warm"])
        elif notice.kind == "heartbeat" and body["warm"] and node not in self._warm:
            self._warm.add(node)
            self.record("node_ready", node=node, warm=True)
        elif notice.kind in ("lost", "broken"):
            self.put_out(node, body["reason"])

    def _judge_sigterm(self, notice: Notice) -> None:
        """Somebody got a SIGTERM: Slurm requeues, preempts or cancels the job, or a user asks us to stop."""
        if self._judging is None:
            self._judging = asyncio.create_task(self._ask_why_terminated())
            log.info("SIGTERM at %s", notice.node or "the supervisor")

    async def _ask_why_terminated(self) -> None:
        why = await asyncio.to_thread(self._cluster.why_terminated)
        if why == "cancel":
            self._request_cancel()
        else:
            self._request_stop(why)

    def _request_stop(self, reason: str) -> None:
        if self.requests.stop is None:
            self.requests.stop = reason
            self.requests.stop_s = time.monotonic()
            self.record("stop_requested", reason=reason)
        self.post(Notice(kind="request"))

    def _request_cancel(self) -> None:
        if not self.requests.cancelled:
            self.requests.cancelled = True
            self.record("stop_requested", reason="cancel")
        self.post(Notice(kind="request"))

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Takes the signals; gives them back to whoever had them."""
        loop = asyncio.get_running_loop()
        handlers = {
            signal.SIGTERM: lambda: self.post(Notice(kind="sigterm")),
            signal.SIGUSR2: lambda: self._request_stop("time_limit"),
            signal.SIGINT: self._request_cancel,
        }
        before = {number: signal.getsignal(number) for number in handlers}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number, earlier in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, earlier)

    async def _hand_back(self, outcome: Outcome) -> Outcome:
        """Has the scheduler start the job again. It then ends this one: what is left to do must not take long."""
        try:
            await asyncio.to_thread(self._cluster.requeue, tuple(self._out))
        except (LauncherError, SlurmError) as error:
            reason = f"{outcome.reason}; not requeued: {error}; submit the job again in the same folder"
            return self._outcome("internal" if self.requests.stop else "too_few_nodes", reason)
        return outcome

    async def _close(self, *, forget: bool) -> None:
        """Ends everything that this job started."""
        for node in self._cluster.nodes:
            self._links.dismiss(node, forget=forget)
        await self._links.close()
        await self._cluster.close(forget=forget)

    def _outcome(self, name: str, reason: str = "") -> Outcome:
        seconds = round(time.monotonic() - self._begun_s, 3)
        return Outcome(name=name, step=self._step, exit_code=EXIT_CODES[name], reason=reason, seconds=seconds)


def _make_folders(job_dir: Path) -> None:
    try:
        job_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        job_dir.chmod(0o700)
        (job_dir / "log").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise LauncherError(f"{job_dir}: cannot be the job's folder ({error.strerror}); choose another") from None


def _prepare(spec: JobSpec, job_dir: Path) -> None:
    """Writes what runners need to know; a secret that is there already stays, a result does not."""
    if not (job_dir / "secret").exists():
        durable_write(job_dir / "secret", os.urandom(32).hex().encode())
    _write_json(job_dir / "job.json", spec.to_mapping())
    (job_dir / "result.json").unlink(missing_ok=True)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    durable_write(path, json.dumps(content, indent=1).encode() + b"\n")


@contextlib.contextmanager
def _logging(path: Path) -> Iterator[None]:
    """Sends the launcher's log to a file and to stdout."""
    logger = logging.getLogger("launcher")
    handlers: list[logging.Handler] = [logging.FileHandler(path), logging.StreamHandler(sys.stdout)]
    level = logger.level
    logger.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()
