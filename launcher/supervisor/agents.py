"""The checkpoint agents of one attempt: one MPI world, and another in its place when it is lost while workers train."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from launcher.clusters.cluster import AgentsHandle, Cluster
from launcher.errors import LauncherError
from launcher.supervisor.evidence import Evidence
from launcher.supervisor.faults import AGENT_LOST, SCHEDULER_LOST, Fault
from launcher.supervisor.host import Host
from launcher.supervisor.links import Links, Notice
from slurm import SlurmError

AGENT_PATIENCE_S = 10.0  # they need two; those that wait for one that cannot start would wait for a minute
RENEW_AFTER_S = (0.0, 5.0, 30.0)  # after the first loss, the second, the third within LOSSES_WITHIN_S; then no more
LOSSES_WITHIN_S = 600.0


class Losses:
    """How often the agents were lost of late, and when to start others. Pure."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque()

    def add(self, now_s: float) -> float | None:
        """Takes note of a loss.

        Args:
            now_s: monotonic seconds.

        Returns:
            In how many seconds to start others; None: not any more.
        """
        self._times_s.append(now_s)
        while now_s - self._times_s[0] > LOSSES_WITHIN_S:
            self._times_s.popleft()
        count = len(self._times_s)
        return RENEW_AFTER_S[count - 1] if count <= len(RENEW_AFTER_S) else None


class Agents:
    """Starts an attempt's agents, watches them, replaces them. What they do for training they do without us.

    Args:
        number: of the attempt.
        nodes: its nodes in node-rank order.
        environment: the agents'; None where the job keeps no checkpoints: then nothing is ever started.
        host, links, cluster: the supervisor's.
        log_path: takes their output.
        evidence: hears of them.
    """

    def __init__(
        self,
        number: int,
        nodes: tuple[str, ...],
        environment: Mapping[str, str] | None,
        *,
        host: Host,
        links: Links,
        cluster: Cluster,
        log_path: Path,
        evidence: Evidence,
    ) -> None:
        self._number = number
        self._nodes = nodes
        self._environment = environment
        self._host = host
        self._links = links
        self._cluster = cluster
        self._log_path = log_path
        self._evidence = evidence
        self._losses = Losses()
        self._handle: AgentsHandle | None = None
        self._waiters: set[asyncio.Task[None]] = set()
        self._asking: asyncio.Task[None] | None = None
        self._due_s: float | None = None  # when others start, monotonic; None: not at all

    @property
    def are_wanted(self) -> bool:
        """Whether the job keeps checkpoints."""
        return self._environment is not None

    async def start(self) -> None:
        """Starts the first ones; that they cannot be is a fault."""
        if self._environment is None:
            return
        try:
            await self._start(self._environment)
        except (LauncherError, OSError) as error:
            self._evidence.fault(Fault(kind=AGENT_LOST, node=None, reason=f"checkpoint agents not started: {error}"))
            return
        self._asking = asyncio.create_task(self._ask_after_them())

    def adopt(self) -> None:
        """Takes over those that another supervisor started."""
        if self._environment is not None:
            self._watch(self._cluster.adopt_agents())

    async def tend(self) -> None:
        """Replaces them where they are lost; called whenever something was heard. In a stop there is no time to wait:
        without agents it saves nothing.
        """
        if self._evidence.take_agent_loss():
            await self._judge_loss()
        if self._due_s is None or self._environment is None:
            return
        if time.monotonic() >= self._due_s or self._host.requests.stop is not None:
            self._due_s = None
            await self._renew(self._environment)

    async def kill(self) -> None:
        """Ends their launcher; agents that outlive it are ended by their nodes' runners."""
        if self._handle is not None:
            await self._handle.kill()
            await self._handle.wait()

    async def close(self) -> None:
        """Nothing here goes on after the attempt."""
        if self._asking is not None:
            self._asking.cancel()
        await asyncio.gather(*self._waiters)

    async def explain_loss(self) -> None:
        """Tells agents that failed before the restore from nodes, or a scheduler, that cannot start any."""
        evidence = self._evidence
        try:
            nodes = await asyncio.to_thread(self._cluster.unusable, self._nodes)
        except SlurmError as error:
            reason = f"the scheduler does not answer, so no checkpoint agent starts; the job waits for it: {error}"
            evidence.faults[0] = Fault(kind=SCHEDULER_LOST, node=None, reason=reason)
            return
        if nodes:
            evidence.faults.clear()
            evidence.take_unusable(nodes)

    async def _judge_loss(self) -> None:
        after_s = self._losses.add(time.monotonic())
        if after_s is None:
            what = "checkpoint agents are lost again and again: nothing is saved until the next attempt"
            self._host.record("problem", attempt=self._number, what=what, detail=f"see {self._log_path}")
            await self.kill()
        else:
            self._due_s = time.monotonic() + after_s
            # Whoever waits for notices calls tend() then.
            asyncio.get_running_loop().call_later(after_s, self._host.post, Notice(kind="agents_due"))

    async def _renew(self, environment: Mapping[str, str]) -> None:
        """Ends what is left of the world that was lost, and starts another."""
        await self.kill()
        generation = self._evidence.renew_agents()
        for node in self._nodes:
            self._links.send(node, {"op": "renew_agents", "attempt": self._number, "generation": generation})
        try:
            await self._start({**environment, "HOLDFAST_GENERATION": str(generation)})
        except (LauncherError, OSError) as error:
            body = {"attempt": self._number, "generation": generation, "reason": f"not started: {error}"}
            self._host.post(Notice(kind="agents_ended", body=body))

    async def _start(self, environment: Mapping[str, str]) -> None:
        self._watch(await self._cluster.start_agents(list(self._nodes), environment, self._log_path))

    def _watch(self, handle: AgentsHandle) -> None:
        self._handle = handle
        self._waiters.add(asyncio.create_task(self._wait_for(handle, self._evidence.generation)))

    async def _wait_for(self, handle: AgentsHandle, generation: int) -> None:
        await handle.wait()
        self._host.post(Notice(kind="agents_ended", body={"attempt": self._number, "generation": generation}))

    async def _ask_after_them(self) -> None:
        """Finds out whether agents that are late can come up at all: the nodes themselves may be in best health."""
        await asyncio.sleep(AGENT_PATIENCE_S)
        if self._evidence.restored:
            return
        with contextlib.suppress(SlurmError):  # if it stays silent the agents' launcher will fail, and tell
            nodes = await asyncio.to_thread(self._cluster.unusable, self._nodes)
            if nodes and not self._evidence.restored:
                self._host.post(Notice(kind="unusable", body={"attempt": self._number, "nodes": nodes}))
