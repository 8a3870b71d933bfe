"""One attempt's life: start agents and workers, watch, end in a named outcome, leave nothing running."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from launcher.clusters.cluster import Cluster
from launcher.history.events import Event
from launcher.host_addresses import ranges
from launcher.supervisor.agents import Agents
from launcher.supervisor.clearing import clear
from launcher.supervisor.evidence import Evidence
from launcher.supervisor.faults import AGENT_LOST, HANG, NODE_LOST, START_TIMEOUT, Fault, root_cause
from launcher.supervisor.hang import CHECK_S, HangDetector, Stall, suspect
from launcher.supervisor.host import Host
from launcher.supervisor.links import Links
from launcher.supervisor.outcome import Ending
from launcher.supervisor.requests import HALT
from slurm.hostlist import compress

START_TIMEOUT_S = 300.0  # until workers run everywhere; a cold import of torch from a shared file system is slow
RETURN_S = 6.0  # after a take-over: a runner looks for it twice a second at least; one that was frozen comes later
PREDECESSOR_S = 1.0
PREDECESSOR_LOST = "lost with the supervisor it ran"
STOP_TIMEOUT_S = {
    "time_limit": 75.0,  # sbatch --signal=B:USR2@90 leaves 90 s
    HALT: 600.0,  # nothing presses: as long as a slow step takes
}
DEFAULT_STOP_TIMEOUT_S = 25.0  # Slurm's KillWait, 30 s by default, runs from the SIGTERM that makes us stop
STACKS_TIMEOUT_S = 12.0  # a runner gives its workers 2 s, and py-spy 5 s
# After a worker's failure, wait this long for its cause: a lost node, or the first of several failures.
CAUSE_WINDOW_S = 0.15
SECONDARY_CAUSE_WINDOW_S = 0.5


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
        self._log_dir = log_dir
        self._hang = hang
        self._stall: Stall | None = None
        self._watching = False  # whether a lack of progress is a fault now
        self._stop_passed_on = False
        self._evidence = Evidence(number, nodes, host, hang, log_dir)
        self._agents = Agents(
            number,
            nodes,
            agent_environment,
            host=host,
            links=links,
            cluster=cluster,
            log_path=log_dir / "agents.log",
            evidence=self._evidence,
        )

    async def resume(self, history: Sequence[Event], predecessor: str | None, out: Collection[str]) -> Ending:
        """Goes on with an attempt that another supervisor began, and that runs; instead of run().

        Args:
            history: the job's events.
            predecessor: that supervisor's node, which may be lost with it.
            out: nodes that are known to be.
        """
        self._evidence.resume(history)
        self._evidence.started.update(self._nodes)
        self._agents.adopt()
        await self._wait_for_return(predecessor, out)
        return await self._finish()

    async def run(self) -> Ending:
        evidence = self._evidence
        await self._begin()
        await self._until(lambda: evidence.all_started, START_TIMEOUT_S)
        if not self._is_over():
            if evidence.all_started:
                self._host.record("workers_started", attempt=self._number, seconds=evidence.seconds)
            else:
                self._blame_late_start()
        return await self._finish()

    async def _finish(self) -> Ending:
        """From the workers' start to the end."""
        evidence = self._evidence
        await self._train()
        if evidence.failures and not evidence.faults:
            await self._find_cause()
        if evidence.faults and evidence.faults[0].kind == AGENT_LOST:
            await self._agents.explain_loss()
        if evidence.all_ended:  # done, or stopped by a SIGTERM that is yet to be understood
            await self._host.requests.settled()
        ending = self._ending()
        if ending.outcome in ("stopped", "halted") and self._stop_is_overdue():
            late = "reached a common step boundary" if self._agents.are_wanted else "ended by their handlers of SIGTERM"
            what = f"not all ranks {late} in time ({self._host.requests.stop}); they were ended"
            self._host.record("problem", attempt=self._number, what=what)
        await self._clear(ending)
        if ending.faults:
            await self._host.look_at_own_checkpoints()
        reached = self._host.see_step(None) or 0
        if self._host.requests.stop and self._agents.are_wanted and reached > evidence.committed_step:
            saved = f"the newest step committed is {evidence.committed_step or 'none'}"
            what = f"ranks ended in the stop without the save that all agree on: step {reached} was reached, {saved}"
            self._host.record("problem", attempt=self._number, what=what)
        for fault in ending.faults + tuple(f for f in evidence.faults if f not in ending.faults):
            self._record_fault(fault)
        return ending

    async def _begin(self) -> None:
        """Sets agents and workers going, at the same time."""
        first = self._nodes[0]
        addresses = (address for node in self._nodes for address in self._links.addresses(node))
        hosts = ranges(addresses)  # of those who may come to the first node's store
        hostlist = compress(self._nodes)  # to every node the names of all: as a list that is 160 MB at 4096 nodes
        for rank, node in enumerate(self._nodes):
            start = {
                "op": "start",
                "attempt": self._number,
                "node_rank": rank,
                "nodes": hostlist,
                "master_addr": self._address(first),
                "master_port": self._links.state(first)["port"],
                "hosts": hosts if node == first else [],
                "agent": self._agents.are_wanted,
            }
            self._links.send(node, start)
        await self._agents.start()

    async def _wait_for_return(self, predecessor: str | None, out: Collection[str]) -> None:
        """Until the runners have found us; that of our predecessor's node gets little time once all others have."""
        evidence, nodes = self._evidence, set(self._nodes)
        begun_s = time.monotonic()
        others_s: float | None = None
        while missing := nodes - evidence.returned - evidence.lost - set(out):
            now_s = time.monotonic()
            if others_s is None and missing <= {predecessor}:
                others_s = now_s
            deadline_s = begun_s + RETURN_S if others_s is None else min(begun_s + RETURN_S, others_s + PREDECESSOR_S)
            if self._links.is_isolated:  # it may be we who are cut off
                deadline_s = now_s + PREDECESSOR_S
            if now_s >= deadline_s or self._host.requests.cancelled:
                break
            notice = await self._host.next_notice(deadline_s - now_s)
            if notice is not None:
                evidence.take(notice)
        absent = {
            node: PREDECESSOR_LOST if node == predecessor else "its runner did not come back"
            for node in self._nodes
            if node in missing or node in out
        }
        self._host.miss(absent)
        for node, reason in absent.items():
            evidence.lost.add(node)
            evidence.fault(Fault(kind=NODE_LOST, node=node, reason=reason, detect_s=0.0))

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
        self._evidence.fault_time_s = time.time()
        self._evidence.stacks.clear()
        for node in self._nodes:
            self._links.send(node, {"op": "dump", "attempt": self._number})
        await self._until(lambda: self._evidence.stacks.keys() >= set(self._nodes), STACKS_TIMEOUT_S)
        self._stall = None
        if self._is_over():  # a node was lost, say: that is the cause
            self._evidence.fault_time_s = time.time()
            return
        if self._hang.check(time.monotonic()) is None:
            self._evidence.fault_time_s = 0.0
            self._host.record("problem", attempt=self._number, what=f"{stall.reason}; then it went on")
            return
        stacks = [stack for of_node in self._evidence.stacks.values() for stack in of_node]
        suspicion = suspect(stacks, [node for node in self._nodes if node not in self._evidence.stacks])
        where = self._log_dir / "rank-*.stack"
        self._evidence.fault(
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
                self._evidence.take(notice)
                await self._agents.tend()
            elif deadline is not None and time.monotonic() >= deadline:
                return

    def _is_over(self) -> bool:
        ends_by_handlers = self._host.requests.stop is not None and not self._agents.are_wanted
        is_over = self._evidence.has_stopped if ends_by_handlers else self._evidence.is_decisive
        return self._host.requests.cancelled or is_over or self._stop_is_overdue()

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
        while not self._evidence.faults and not self._host.requests.cancelled:
            if {failure.node for failure in self._evidence.failures} | self._evidence.ended >= everywhere:
                break
            is_clear = any(not failure.is_secondary for failure in self._evidence.failures)
            window_s = CAUSE_WINDOW_S if is_clear else SECONDARY_CAUSE_WINDOW_S
            notice = await self._host.next_notice(max(0.0, begun_s + window_s - time.monotonic()))
            if notice is None:
                break
            self._evidence.take(notice)
        if not self._evidence.faults:
            self._evidence.fault(root_cause(self._evidence.failures))

    def _ending(self) -> Ending:
        if self._host.requests.cancelled:
            return Ending(outcome="cancelled")
        if self._evidence.all_ended:
            return Ending(outcome=self._host.requests.outcome if self._host.requests.stop else "done")
        if self._evidence.faults:
            return Ending(outcome="fault", faults=tuple(self._evidence.faults))
        return Ending(outcome=self._host.requests.outcome)

    async def _clear(self, ending: Ending) -> None:
        await clear(
            self._number,
            self._nodes,
            outcome=ending.outcome,
            host=self._host,
            links=self._links,
            agents=self._agents,
            evidence=self._evidence,
        )
        await self._agents.close()

    def _blame_late_start(self) -> None:
        late = [node for node in self._nodes if node not in self._evidence.started]
        cold = [node for node in late if not self._links.state(node)["warm"]]
        reason = f"workers not started within {START_TIMEOUT_S:g} s on {','.join(late)}"
        if cold and len(cold) < len(self._nodes):
            for node in cold:
                self._host.put_out(node, "torch not loaded within the start timeout")
        self._evidence.fault(Fault(kind=START_TIMEOUT, node=cold[0] if cold else None, reason=reason))

    def _record_fault(self, fault: Fault) -> None:
        """Written after the clearing, when the step is known for certain, but with the time at which it was noticed."""
        self._host.record(
            "fault",
            time=round(self._evidence.fault_time_s, 3),
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
