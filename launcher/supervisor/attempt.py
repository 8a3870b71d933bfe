"""One attempt's life: start agents and workers, watch, end in a named outcome, leave nothing running."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from launcher.clusters.cluster import AgentsHandle, Cluster
from launcher.errors import LauncherError
from launcher.supervisor.faults import (
    AGENT_LOST,
    HANG,
    NODE_LOST,
    PROCESS_EXIT,
    RUNNER_LOST,
    START_TIMEOUT,
    Fault,
    WorkerFailure,
    root_cause,
)
from launcher.supervisor.hang import CHECK_S, HangDetector, RankStack, Stall, suspect
from launcher.supervisor.links import Links, Notice

log = logging.getLogger(__name__)

START_TIMEOUT_S = 300.0  # until workers run everywhere; a cold import of torch from a shared file system is slow
STOP_TIMEOUT_S = {"time_limit": 75.0}  # sbatch --signal=B:USR2@90 leaves 90 s
DEFAULT_STOP_TIMEOUT_S = 25.0  # Slurm's KillWait, 30 s by default, runs from the SIGTERM that makes us stop
KILL_CONFIRM_S = 5.0
STACKS_TIMEOUT_S = 12.0  # a runner gives its workers 2 s, and py-spy 5 s
AGENT_DRAIN_S = 600.0  # after the last step: what the agents still write is the job's result
AGENT_STOP_S = 3.0  # when stopping the time is short and memory survives
# After a worker's failure, wait this long for its cause: a lost node, or the first of several failures.
CAUSE_WINDOW_S = 0.15
SECONDARY_CAUSE_WINDOW_S = 0.5


class Requests:
    """What somebody outside has asked for.

    Attributes:
        stop: why the job is to stop at a step boundary (requeue, preempted, time_limit); None if it is not.
        stop_s: when that was asked (time.monotonic).
        cancelled: whether it is to end at once.
    """

    def __init__(self) -> None:
        self.stop: str | None = None
        self.stop_s = 0.0
        self.cancelled = False


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How an attempt ended.

    Attributes:
        outcome: done, fault, stopped or cancelled.
        faults: what ended it, the decisive one first; only for the outcome fault.
    """

    outcome: str
    faults: tuple[Fault, ...] = ()


class Host(Protocol):
    """What an attempt needs of the supervisor."""

    requests: Requests

    async def next_notice(self, timeout_s: float | None) -> Notice | None:
        """The next notice, after the supervisor itself has taken note of it; None after `timeout_s`."""

    def post(self, notice: Notice) -> None:
        """Puts a notice into the inbox."""

    def record(self, event: str, **fields: Any) -> None:
        """Writes an event."""

    def see_step(self, step: int | None) -> int | None:
        """Takes note of a finished step; returns the newest of this attempt."""

    def put_out(self, node: str, reason: str) -> None:
        """Excludes a node from the job."""


class Attempt:
    """Runs one attempt. Make it, then await run() once.

    Args:
        number: of the attempt.
        nodes: its nodes in node-rank order.
        host: the supervisor.
        links: the runners' connections.
        cluster: starts the agents.
        agent_environment: the agents' environment; None where the job keeps no checkpoints.
        log_dir: this attempt's logs.
        hang: watches its progress.
    """

    def __init__(
        self,
        number: int,
        nodes: tuple[str, ...],
        *,
        host: Host,
        links: Links,
        cluster: Cluster,
        agent_environment: dict[str, str] | None,
        log_dir: Path,
        hang: HangDetector,
    ) -> None:
        self._number = number
        self._nodes = nodes
        self._host = host
        self._links = links
        self._cluster = cluster
        self._agent_environment = agent_environment
        self._log_dir = log_dir
        self._hang = hang
        self._stall: Stall | None = None
        self._watching = False  # whether a lack of progress is a fault now
        self._stacks: dict[str, list[RankStack]] = {}
        self._agents: AgentsHandle | None = None
        self._agents_waiter: asyncio.Task[None] | None = None
        self._agents_ended = self._restored = self._agent_problem = False
        self._started: set[str] = set()
        self._ended: set[str] = set()
        self._failures: list[WorkerFailure] = []
        self._faults: list[Fault] = []
        self._killed: set[str] = set()
        self._lost: set[str] = set()
        self._first_step_seen = self._stop_passed_on = False
        self._begun_s = self._fault_time_s = 0.0

    async def run(self) -> Ending:
        await self._begin()
        await self._until(lambda: self._started >= set(self._nodes), START_TIMEOUT_S)
        if not self._is_over():
            if self._started >= set(self._nodes):
                self._host.record("workers_started", attempt=self._number, seconds=self._seconds())
            else:
                self._blame_late_start()
        await self._train()
        if self._failures and not self._faults:
            await self._find_cause()
        ending = self._ending()
        if ending.outcome == "stopped" and self._stop_is_overdue():
            what = f"not all ranks reached a common step boundary in time ({self._host.requests.stop}); they were ended"
            self._host.record("problem", attempt=self._number, what=what)
        await self._clear(ending)
        for fault in ending.faults + tuple(f for f in self._faults if f not in ending.faults):
            self._record_fault(fault)
        return ending

    async def _begin(self) -> None:
        """Sets agents and workers going, at the same time."""
        self._log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._begun_s = time.time()
        has_agents = self._agent_environment is not None
        first = self._nodes[0]
        for rank, node in enumerate(self._nodes):
            start = {
                "op": "start",
                "attempt": self._number,
                "node_rank": rank,
                "nodes": list(self._nodes),
                "master_addr": self._address(first),
                "master_port": self._links.state(first)["port"],
                "agent": has_agents,
            }
            self._links.send(node, start)
        if self._agent_environment is not None:
            await self._start_agents(self._agent_environment)

    async def _start_agents(self, environment: dict[str, str]) -> None:
        log_path = self._log_dir / "agents.log"
        try:
            self._agents = await self._cluster.start_agents(list(self._nodes), environment, log_path)
        except (LauncherError, OSError) as error:
            self._fault(Fault(kind=AGENT_LOST, node=None, reason=f"checkpoint agents not started: {error}"))
            return
        self._agents_waiter = asyncio.create_task(self._wait_for_agents(self._agents))

    async def _wait_for_agents(self, agents: AgentsHandle) -> None:
        await agents.wait()
        self._host.post(Notice(kind="agents_ended", body={"attempt": self._number}))

    async def _train(self) -> None:
        """Until the attempt is over; workers that hang end it."""
        self._hang.begin(time.monotonic())
        self._watching = True
        while not self._is_over():
            await self._until(self._has_stalled, None)
            if self._stall is not None and not self._is_over():
                await self._judge_stall(self._stall)
        self._watching = False

    def _has_stalled(self) -> bool:
        """Whether the workers have stopped making progress. While they are asked to stop, that has its own deadline."""
        if self._host.requests.stop is None:
            self._stall = self._hang.check(time.monotonic())
        return self._stall is not None

    async def _judge_stall(self, stall: Stall) -> None:
        """Has every node write its workers' stacks, and names the rank that the others wait for."""
        self._fault_time_s = time.time()
        self._stacks = {}
        for node in self._nodes:
            self._links.send(node, {"op": "dump", "attempt": self._number})
        await self._until(lambda: self._stacks.keys() >= set(self._nodes), STACKS_TIMEOUT_S)
        self._stall = None
        if self._is_over():  # a node was lost, say: that is the cause
            self._fault_time_s = time.time()
            return
        if self._hang.check(time.monotonic()) is None:
            self._fault_time_s = 0.0
            self._host.record("problem", attempt=self._number, what=f"{stall.reason}; then it went on")
            return
        stacks = [stack for of_node in self._stacks.values() for stack in of_node]
        suspicion = suspect(stacks, [node for node in self._nodes if node not in self._stacks])
        where = self._log_dir / "rank-*.stack"
        self._fault(
            Fault(
                kind=HANG,
                node=suspicion.stack.node if suspicion.stack else None,
                rank=suspicion.stack.rank if suspicion.stack else None,
                reason=f"{stall.reason}; {suspicion.text}; stacks in {where}",
                detect_s=round(stall.quiet_s, 3),
            )
        )

    async def _until(self, done: Callable[[], bool], timeout_s: float | None) -> None:
        """Takes notices until `done`, until the attempt is over, or for `timeout_s`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (done() or self._is_over()):
            wait_s = self._pass_on_stop()
            if self._watching:
                wait_s = CHECK_S if wait_s is None else min(wait_s, CHECK_S)
            if deadline is not None:
                left_s = max(0.0, deadline - time.monotonic())
                wait_s = left_s if wait_s is None else min(wait_s, left_s)
            notice = await self._host.next_notice(wait_s)
            if notice is not None:
                self._take(notice)
            elif deadline is not None and time.monotonic() >= deadline:
                return

    def _is_over(self) -> bool:
        stop_without_agents = self._host.requests.stop is not None and self._agent_environment is None
        return (
            self._host.requests.cancelled
            or bool(self._faults or self._failures)
            or self._ended >= set(self._nodes)
            or stop_without_agents
            or self._stop_is_overdue()
        )

    def _take(self, notice: Notice) -> None:
        """Takes note of what concerns this attempt."""
        node, body = notice.node, notice.body
        if notice.kind == "lost" and node in self._nodes:
            self._lost.add(node)
            self._fault(Fault(kind=NODE_LOST, node=node, reason=body["reason"], detect_s=body["detect_s"]))
        elif notice.kind == "broken" and node in self._nodes:
            self._lost.add(node)
            self._fault(Fault(kind=RUNNER_LOST, node=node, reason=body["reason"]))
        elif body.get("attempt") != self._number:
            return
        elif notice.kind == "heartbeat" and node is not None:
            self._host.see_step(body["step"])
            self._hang.note(node, body["slowest"], body["activity"], time.monotonic())
        elif notice.kind == "stacks" and node is not None:
            self._stacks[node] = [RankStack.from_report(node, rank) for rank in body["ranks"]]
        elif notice.kind == "started" and node is not None:
            self._started.add(node)
        elif notice.kind == "first_step" and not self._first_step_seen:
            self._first_step_seen = True
            seconds = round(body["time"] - self._begun_s, 3)
            self._host.record("first_step", attempt=self._number, step=body["step"], seconds=seconds)
        elif notice.kind == "ended" and node is not None:
            self._take_end(node, body)
        elif notice.kind == "killed" and node is not None:
            self._take_killed(node, body)
        elif notice.kind == "monitor":
            self._take_agent_event(node, body["event"])
        elif notice.kind in ("agent_lost", "agents_ended"):
            self._agents_ended |= notice.kind == "agents_ended"
            # Perhaps its node is lost too: judge a moment later.
            later = Notice(kind="agent_loss", node=node, body=body)
            asyncio.get_running_loop().call_later(SECONDARY_CAUSE_WINDOW_S, self._host.post, later)
        elif notice.kind == "agent_loss" and not self._is_over():
            self._take_agent_loss(node, body.get("reason") or "the checkpoint agents ended")

    def _take_end(self, node: str, body: dict[str, Any]) -> None:
        self._host.see_step(body["step"])
        self._failures += [WorkerFailure.from_report(node, failure) for failure in body["failures"]]
        if body["ok"]:
            self._ended.add(node)
        elif not body["failures"]:
            self._fault(Fault(kind=PROCESS_EXIT, node=node, reason=f"{node}: {body['reason']}"))
        if not self._fault_time_s and self._failures:
            self._fault_time_s = time.time()

    def _take_killed(self, node: str, body: dict[str, Any]) -> None:
        if body["left"]:
            reason = f"processes {body['left']} do not end (uninterruptible sleep); reboot the node"
            self._host.put_out(node, reason)
        self._host.see_step(body["step"])
        self._killed.add(node)

    def _take_agent_event(self, node: str | None, event: dict[str, Any]) -> None:
        name = event.get("event")
        fields = {key: value for key, value in event.items() if key != "event"} | {"attempt": self._number}
        if name == "restore_plan":
            self._restored = True
            self._host.record("restore", **fields)
        elif name == "commit":
            self._host.see_step(event.get("step"))
            self._host.record("commit", **fields)
        elif name in ("problem", "rebuilt", "stop_agreed"):
            self._host.record(name, **fields, node=node)

    def _take_agent_loss(self, node: str | None, reason: str) -> None:
        if self._agent_problem or self._host.requests.stop:
            return
        self._agent_problem = True
        if self._restored:  # training goes on; the next attempt brings new agents
            what = "checkpoint agent lost: nothing is saved until the next attempt"
            self._host.record("problem", attempt=self._number, node=node, what=what, detail=reason)
        else:
            self._fault(Fault(kind=AGENT_LOST, node=node, reason=f"{reason} (see {self._log_dir / 'agents.log'})"))

    def _pass_on_stop(self) -> float | None:
        """Asks all ranks to stop if somebody wants that; returns how long that may take from now."""
        requests = self._host.requests
        if requests.stop is None:
            return None
        if not self._stop_passed_on:
            self._stop_passed_on = True
            for node in self._nodes:
                self._links.send(node, {"op": "stop", "attempt": self._number})
        return max(0.0, self._stop_deadline_s() - time.monotonic())

    def _stop_deadline_s(self) -> float:
        requests = self._host.requests
        return requests.stop_s + STOP_TIMEOUT_S.get(requests.stop or "", DEFAULT_STOP_TIMEOUT_S)

    def _stop_is_overdue(self) -> bool:
        return self._host.requests.stop is not None and time.monotonic() >= self._stop_deadline_s()

    async def _find_cause(self) -> None:
        """Waits a moment for what lies behind the first failure: a lost node, or a failure before it."""
        everywhere = set(self._nodes)
        begun_s = time.monotonic()
        while not self._faults and not self._host.requests.cancelled:
            if {failure.node for failure in self._failures} | self._ended >= everywhere:
                break
            is_clear = any(not failure.is_secondary for failure in self._failures)
            window_s = CAUSE_WINDOW_S if is_clear else SECONDARY_CAUSE_WINDOW_S
            notice = await self._host.next_notice(max(0.0, begun_s + window_s - time.monotonic()))
            if notice is None:
                break
            self._take(notice)
        if not self._faults:
            self._fault(root_cause(self._failures))

    def _ending(self) -> Ending:
        if self._host.requests.cancelled:
            return Ending(outcome="cancelled")
        if self._ended >= set(self._nodes):
            return Ending(outcome="stopped" if self._host.requests.stop else "done")
        if self._faults:
            return Ending(outcome="fault", faults=tuple(self._faults))
        return Ending(outcome="stopped")

    async def _clear(self, ending: Ending) -> None:
        """Leaves nothing of the attempt running on the nodes that answer."""
        if self._ended >= set(self._nodes) and ending.outcome != "cancelled":
            await self._release_agents(AGENT_DRAIN_S if ending.outcome == "done" else AGENT_STOP_S)
        if self._agents is not None:
            await self._agents.kill()
        if self._agents_waiter is not None:
            await self._agents_waiter
        for node in self._nodes:
            self._links.send(node, {"op": "kill", "attempt": self._number})
        deadline = time.monotonic() + KILL_CONFIRM_S
        while waited_for := set(self._nodes) - self._killed - self._lost:
            notice = await self._host.next_notice(max(0.0, deadline - time.monotonic()))
            if notice is not None:
                self._take(notice)
            elif time.monotonic() >= deadline:
                for node in waited_for:
                    self._host.put_out(node, f"did not confirm the end of its workers within {KILL_CONFIRM_S:g} s")
                return

    async def _release_agents(self, timeout_s: float) -> None:
        for node in self._nodes:
            self._links.send(node, {"op": "release_agent", "attempt": self._number})
        deadline = time.monotonic() + timeout_s
        while self._agents is not None and not self._agents_ended and not self._host.requests.cancelled:
            notice = await self._host.next_notice(max(0.0, deadline - time.monotonic()))
            if notice is not None:
                self._take(notice)
            elif time.monotonic() >= deadline:
                what = f"checkpoint agents still at work {timeout_s:g} s after training ended were killed"
                self._host.record("problem", attempt=self._number, what=what)
                return

    def _blame_late_start(self) -> None:
        late = [node for node in self._nodes if node not in self._started]
        cold = [node for node in late if not self._links.state(node)["warm"]]
        reason = f"workers not started within {START_TIMEOUT_S:g} s on {','.join(late)}"
        if cold and len(cold) < len(self._nodes):
            for node in cold:
                self._host.put_out(node, "torch not loaded within the start timeout")
        self._fault(Fault(kind=START_TIMEOUT, node=cold[0] if cold else None, reason=reason))

    def _fault(self, fault: Fault) -> None:
        self._faults.append(fault)
        self._fault_time_s = self._fault_time_s or time.time()

    def _record_fault(self, fault: Fault) -> None:
        """Written after the clearing, when the step is known for certain, but with the time at which it was noticed."""
        self._host.record(
            "fault",
            time=round(self._fault_time_s, 3),
            attempt=self._number,
            node=fault.node,
            step=self._host.see_step(None),
            kind=fault.kind,
            rank=fault.rank,
            reason=fault.reason,
            detect=fault.detect_s,
            traceback=fault.traceback,
        )

    def _address(self, node: str) -> str:
        """Where other nodes reach this one. The batch host's own runner may come from a loopback address."""
        address = self._links.address(node)
        return node if address.startswith("127.") and self._cluster.name != "local" else address

    def _seconds(self) -> float:
        return round(time.time() - self._begun_s, 3)
