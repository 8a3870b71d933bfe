"""The agent: connects its parts, and runs from the restore to the shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from ckpt.agent.cadence import CadenceLeader
from ckpt.agent.context import Context
from ckpt.agent.exchange import Exchange
from ckpt.agent.flush.leader import FlushLeader
from ckpt.agent.flush.lease import Lease
from ckpt.agent.flush.node import FlushNode
from ckpt.agent.idle_exit import IdleExit
from ckpt.agent.process.launch import PID_FILE
from ckpt.agent.process.lifetime import MemoryDirectory, leave_within, yield_to_training
from ckpt.agent.protect.node import ProtectNode
from ckpt.agent.rejoin.leader import RejoinLeader
from ckpt.agent.rejoin.node import RejoinNode
from ckpt.agent.restore.leader import RestoreLeader
from ckpt.agent.restore.node import RestoreNode
from ckpt.agent.restore.prefetch import PrefetchNode
from ckpt.agent.restore.serve import Loading
from ckpt.agent.rpc.messages import OF_RUNNER, OF_WORKER, TO_RUNNER, check, event
from ckpt.agent.rpc.peers import PeerError, Peers
from ckpt.agent.rpc.transport import Transport
from ckpt.agent.rpc.worker_socket import Client, WorkerSocket
from ckpt.agent.save.leader import SaveLeader
from ckpt.agent.save.node import SaveNode
from ckpt.agent.saves import NodeSaves
from ckpt.agent.shards.memory_store import MemoryStore
from ckpt.agent.shards.node_disk import NodeDisk
from ckpt.agent.stop import Stop
from ckpt.agent.tasks import Tasks
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import CheckpointError
from ckpt.memory.board import Board
from ckpt.redundancy import members_at, scheme_of
from ckpt.redundancy.sets import most_in_one_domain
from ckpt.tiers.open import lower_tiers
from ckpt.timeouts import AgentDeadlines
from holdfast.base.deadlines import within

_PARENT_POLL_S = 1.0
_MEMORY_POLL_S = 1.0
_WORKERS_POLL_S = 0.05
_CUT_SHORT_S = 1.0  # for saves that all ranks made before the workers were killed to be committed

Lead = RestoreLeader | RejoinLeader | SaveLeader | Lease | CadenceLeader  # run only on node rank 0

log = logging.getLogger(__name__)


class Agent:
    """One node's agent for one attempt. Construct it inside a running event loop, then `run` it."""

    def __init__(
        self,
        place: Place,
        config: CheckpointConfig,
        transport: Transport,
        deadlines: AgentDeadlines,
        memory: MemoryDirectory,
    ) -> None:
        self._place = place
        self._config = config
        self._deadlines = deadlines
        self._memory = memory
        self._ended = asyncio.Event()
        self._peers = Peers(transport, place.members, deadlines)
        self._listener = WorkerSocket(place.socket_path, self._serve)
        memory_store = MemoryStore(place.ram_dir, place.run_id, config.namespace)
        tiers = lower_tiers(config, place.node)
        node_disk = self._node_disk = NodeDisk(tiers)
        context = Context(
            place=place, config=config, deadlines=deadlines, memory_store=memory_store, peers=self._peers,
            listener=self._listener,
            tiers=tiers, node_disk=node_disk, exchange=Exchange(self._peers, memory_store, node_disk),
        )  # fmt: skip
        self._workers_loaded = context.workers_loaded
        self._saves = NodeSaves(context)
        self._protect = ProtectNode(context, self._saves)
        self._saving = SaveNode(context, self._saves, self._protect)
        self._restore = RestoreNode(context, self._saves, self._protect)
        self._loading = Loading(context, self._restore.plan, self._saves)
        self._prefetch = PrefetchNode(context, self._restore.plan, self._loading, self._protect)
        self._board = _board_of(place)
        self._stop = Stop(context, self._board)
        self._rejoin = RejoinNode(context, self._saves, self._stop)
        if place.generation:
            self._workers_loaded.set()
            self._restore.refuse(
                "the agents were lost and replaced before this worker had loaded; the next start loads"
            )
        self._flush = FlushNode(context, self._saves)
        self._idle_exit = IdleExit(context)
        self._leads: list[Lead] = []
        self._first: RestoreLeader | RejoinLeader | None = None
        self._lease: Lease | None = None  # that of node rank 0 is for all nodes
        self._finishing: asyncio.Future[None] | None = None
        self._finished = 0  # workers of this node that have sent "bye"
        if place.node_rank == 0:
            self._lease = Lease(context)
            restored = lambda: self._loading.restored  # noqa: E731
            cadence = CadenceLeader(context, self._stop, lambda: plan.save if (plan := restored()) else None)
            flush = FlushLeader(context, self._lease, lambda: self._saves.newest, cadence)
            first = RejoinLeader if place.generation else RestoreLeader
            self._first = first(context, self._lease, flush)
            self._leads += [self._first, SaveLeader(context, flush, restored, cadence)]
            self._leads += [self._lease, cadence]
        if not place.is_holder:
            self._describe_redundancy()

    def _describe_redundancy(self) -> None:
        place, config = self._place, self._config
        members, scheme = members_at(place, config.redundancy), scheme_of(config.redundancy)
        survives, names = scheme.survives(members), ", ".join(place.nodes[node] for node in members)
        log.info("redundancy %s over %s: survives %d of %d nodes lost", scheme.name, names, survives, len(members))
        if survives < scheme.promise:
            log.warning(
                "redundancy %s: a set of %d is too small to survive %d lost, as configured: survives %d",
                scheme.name, len(members), scheme.promise, survives,
            )  # fmt: skip
        if (
            config.redundancy.failure_domain == "switch"
            and (taken := most_in_one_domain(members, place.domains)) > survives
        ):
            log.warning("redundancy %s: a lost switch takes %d of %s, more than it survives", scheme.name, taken, names)

    async def run(
        self, *, until_unused: bool = False, forked: bool = False, when_loaded: Callable[[], None] = lambda: None
    ) -> None:
        """Serves until a shutdown request, or until the process that started the agent has ended.

        Args:
            until_unused: whether all agents also end together once no process is connected to any of them.
            forked: whether the agent was forked from a template; then it does not watch its parent.
            when_loaded: called once this node's workers have loaded, or save. Before that they wait for the agent.
        """
        for stale in self._place.ram_dir.glob("agent-*.sock"):
            stale.unlink()  # left by killed agents
        for file in self._place.ram_dir.glob(PID_FILE.format(pid="[0-9]*")):
            if not os.path.exists(f"/proc/{file.stem.removeprefix('agent-')}"):
                file.unlink(missing_ok=True)
        await self._listener.listen()
        log.info("node %s listens on %s", self._place.node, self._place.socket_path)
        tasks = Tasks()
        for work in (self._follow_peers(), self._follow_memory(), *map(self._guard, self._leads)):
            tasks.start(work)
        tasks.start(self._call_when_loaded(when_loaded))
        if not forked:
            tasks.start(self._follow_parent())
        if until_unused:
            tasks.start(self._follow_program())
        try:
            await self._ended.wait()
        finally:
            await tasks.cancel()
            is_over = self._finished or (isinstance(self._first, RestoreLeader) and self._first.is_refused)
            if self._lease and self._ended.is_set() and is_over and not self._stop.agreed:
                await self._lease.release()
            await self._listener.close()
            self._node_disk.leave()
            self._board.close()

    async def _guard(self, lead: Lead) -> None:
        """Runs a leader and reports its errors as problems. Otherwise saves or restores would wait for ever.

        Without a rejoin no worker can be served, so the agent ends; the launcher then starts other agents.
        """
        try:
            await lead.run()
        except Exception as error:
            log.exception("%s failed", type(lead).__name__)
            self._listener.problem(type(lead).__name__, f"{type(error).__name__}: {error}")
            if isinstance(lead, RejoinLeader):
                self._ended.set()

    async def _follow_peers(self) -> None:
        """Serves the other agents.

        When they are lost, drops the saves that can no longer be committed. Workers are still served.
        """
        await self._peers.run()
        if self._peers.broken:
            self._listener.problem("the other agents are lost", self._peers.broken)
            self._restore.fail(self._peers.broken)
            self._rejoin.fail(self._peers.broken)
            self._stop.world_lost()
            await self._saving.world_lost(f"the other agents are lost: {self._peers.broken}")

    async def _follow_parent(self) -> None:
        """Polls the parent.

        PR_SET_PDEATHSIG would already fire when the thread of slurmstepd that started the agent ends.
        """
        parent = os.getppid()
        while os.getppid() == parent:
            await asyncio.sleep(_PARENT_POLL_S)
        log.warning("the process that started this agent has ended; this agent ends too")
        self._ended.set()

    async def _follow_memory(self) -> None:
        """Makes the memory directory again after it was removed. Workers and the runner find it by its name.

        Shards in flight are lost, and their saves are dropped. The next save is complete again.
        """
        failure = ""
        while True:
            await asyncio.sleep(_MEMORY_POLL_S)
            if self._memory.is_there and self._board.is_there and self._listener.is_there:
                continue
            what = f"{self._place.ram_dir} was removed, with all that this node held in memory"
            try:
                if not self._memory.is_there:
                    self._memory.make_again()
                if not self._board.is_there:
                    self._board.make_again()
                await self._listener.listen()
            except (CheckpointError, OSError) as error:
                if str(error) != failure:
                    failure = str(error)
                    self._listener.problem("memory directory removed", f"{what}; it cannot be created again: {failure}")
                continue
            failure = ""
            more = "it was created again, and the next save is complete; does systemd remove it (RemoveIPC=yes)?"
            self._listener.problem("memory directory removed", f"{what}; {more}")

    async def _follow_program(self) -> None:
        await self._idle_exit.run()
        self._ended.set()

    async def _serve(self, client: Client, message: dict[str, Any]) -> dict[str, Any] | None:
        op = message.get("op")
        if client.role == "monitor":
            await self._serve_monitor(client, op, check(message, OF_RUNNER))
            return None
        if op == "staged":
            self._workers_loaded.set()
            self._saving.staged(client, message)  # checks it, and drops the save if it is invalid
            return None
        return await self._serve_worker(client, op, check(message, OF_WORKER))

    async def _serve_monitor(self, client: Client, op: Any, message: dict[str, Any]) -> None:
        match op:
            case "ping":
                client.send(event("pong", {}, TO_RUNNER))
            case "stop":
                await self._saving.limit_lower(message.get("lower_s"))
                await self._stop.request()
            case "shutdown":
                await self._workers_gone(message.get("workers_s", 0.0))
                if message.get("finish"):
                    self._finishing = asyncio.ensure_future(self._finish())  # pings are answered meanwhile
                else:
                    self._ended.set()

    async def _finish(self) -> None:
        """Nothing is trained any more: the newest step is written to all lower tiers before the memory is freed."""
        have_all_saved = self._finished >= self._place.ranks_per_node  # else the workers were killed, maybe in a save
        limit_s = self._deadlines.answer_s if have_all_saved else _CUT_SHORT_S
        try:
            with contextlib.suppress(asyncio.TimeoutError):  # a save that some rank never made is not waited for
                await within(limit_s, self._saving.await_saves())
            await self._peers.call(0, "ask_finish")
        except PeerError as error:
            self._listener.problem("the last step was not written to the lower tiers", str(error))
        finally:
            self._ended.set()

    async def _call_when_loaded(self, function: Callable[[], None]) -> None:
        await self._workers_loaded.wait()
        function()

    async def _workers_gone(self, timeout_s: float) -> None:
        """Waits until no worker is connected, at most `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and any(client.role == "worker" for client in self._listener.clients):
            await asyncio.sleep(_WORKERS_POLL_S)

    async def _serve_worker(self, client: Client, op: Any, message: dict[str, Any]) -> dict[str, Any] | None:
        match op:
            case "plan":
                return await self._loading.plan_for_worker()
            case "rejoin":
                return await self._rejoin.for_worker(message["generation"])
            case "foreseen":
                return await self._prefetch.for_worker()
            case "prefetch":
                self._prefetch.fetch(message["step"], message["wants"])
            case "open":
                step, rank, blocks = message.get("step"), message["rank"], message["blocks"]
                return await self._prefetch.record(rank, blocks) or await self._loading.open(step, rank, blocks)
            case "choose":
                return await self._loading.choose(message["step"])
            case "best":
                return await self._loading.best()
            case "damaged":
                await self._loading.damaged(message.get("step"), message["rank"], message["path"])
            case "load_ended":
                self._loading.loaded(client.local_rank, message.get("step"), message.get("seconds", 0.0))
            case "drop_shard":
                reason = f"rank {message['rank']}: {message['reason']}"
                self._saving.drop_shard(message["step"], message["descent"], reason)
            case "drop_up_to":
                await self._saving.drop_up_to(message["step"], message["descent"], message["rank"])
            case "await_saves":
                await self._saving.await_saves(is_closing=message.get("closing", False))
            case "bye":
                self._finished += 1
                log.info("local rank %d has finished", client.local_rank)
        return None


def _board_of(place: Place) -> Board:
    """The board of the attempt, which may exist from earlier agents."""
    if place.generation:
        with contextlib.suppress(FileNotFoundError):
            return Board.open(place.ram_dir)
    return Board.create(place.ram_dir, place.attempt)


def run_agent(
    place: Place,
    config: CheckpointConfig,
    transport: Transport,
    deadlines: AgentDeadlines,
    memory: MemoryDirectory,
    *,
    until_unused: bool = False,
    forked: bool = False,
) -> None:
    """Runs the agent to its end, then leaves the MPI world. Waits at most `leave_s` for the other agents to leave."""

    async def main() -> None:
        agent = Agent(place, config, transport, deadlines, memory)
        await agent.run(until_unused=until_unused, forked=forked, when_loaded=yield_to_training)

    asyncio.run(main())
    with leave_within(deadlines.leave_s, "the other agents to leave", exit_code=0):
        transport.close()
