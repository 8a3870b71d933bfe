"""The agent: its parts wired together, and its life from the first wait to the last."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckpt.agent.coordinator import Coordinator
from ckpt.agent.deadlines import Deadlines
from ckpt.agent.drain import DrainLead, DrainPart, shared_tier
from ckpt.agent.exchange import Exchange
from ckpt.agent.holdings import Holdings
from ckpt.agent.listener import Client, Listener
from ckpt.agent.loading import Loading
from ckpt.agent.peers import Peers
from ckpt.agent.recover import RecoverLead
from ckpt.agent.restore import Restore
from ckpt.agent.saves import Saves
from ckpt.agent.stop import Stop
from ckpt.config import CheckpointConfig, Place
from ckpt.errors import AgentError
from ckpt.record.board import Board
from ckpt.redundancy import scheme_named
from ckpt.redundancy.sets import redundancy_sets, set_of
from ckpt.transport import Transport

_PARENT_POLL_S = 1.0
_LOCK_POLL_S = 0.05

log = logging.getLogger(__name__)


class Agent:
    """One node's agent for one attempt. Make it inside a running event loop, then `run` it."""

    def __init__(
        self, place: Place, config: CheckpointConfig, transport: Transport, deadlines: Deadlines = Deadlines()
    ) -> None:
        self._place = place
        self._peers = Peers(transport, place.nodes)
        self._ended = asyncio.Event()
        self._listener = Listener(place.socket_path, self._serve)
        holdings = Holdings(place.ram_dir, place.run_id, config.namespace)
        tier = shared_tier(config)
        exchange = Exchange(self._peers, holdings, deadlines)
        self._saves = Saves(place, config, holdings, exchange, self._peers, self._listener, deadlines)
        self._restore = Restore(place, config, tier, holdings, exchange, self._saves, self._peers, self._listener)
        self._loading = Loading(place, tier, self._restore.plan, holdings, exchange, self._peers, deadlines)
        self._board = Board.create(place.ram_dir, place.attempt)
        self._stop = Stop(self._board, self._peers, self._listener, deadlines)
        DrainPart(place, tier, self._saves, holdings, self._peers)
        self._leads: list[Any] = []
        if place.node_rank == 0:
            drain = DrainLead(place, config, tier, self._peers, self._listener, deadlines)
            self._leads = [
                RecoverLead(place, tier, self._peers, self._listener, deadlines),
                Coordinator(self._peers, self._listener, drain, deadlines),
            ]
        members = set_of(place.node_rank, redundancy_sets(len(place.nodes)))
        scheme = scheme_named(config.peers.scheme)
        log.info("redundancy %s: survives %d of %d nodes lost", scheme.name, scheme.survives(members), len(members))

    async def run(self) -> None:
        """Serves until told to shut down, or until the process that started us has ended."""
        await self._listener.start()
        log.info("node %s listens on %s", self._place.node, self._place.socket_path)
        tasks = [asyncio.ensure_future(self._follow_peers()), asyncio.ensure_future(self._follow_parent())]
        tasks += [asyncio.ensure_future(lead.run()) for lead in self._leads]
        try:
            await self._ended.wait()
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    log.error("a part of the agent failed", exc_info=result)
            await self._listener.close()
            self._board.close()

    async def _follow_peers(self) -> None:
        """When the other agents are lost, saves that they could no longer commit are dropped; workers go on being served."""
        await self._peers.run()
        if self._peers.broken:
            self._listener.problem("the other agents are lost", self._peers.broken)
            self._restore.fail(self._peers.broken)
            await self._saves.drop_unpromised(f"the other agents are lost: {self._peers.broken}")

    async def _follow_parent(self) -> None:
        """Polled: a signal on the parent's death would be set off by the end of a mere thread of slurmstepd."""
        parent = os.getppid()
        while os.getppid() == parent:
            await asyncio.sleep(_PARENT_POLL_S)
        log.warning("the process that started this agent has ended: leaving")
        self._ended.set()

    async def _serve(self, client: Client, message: dict[str, Any]) -> dict[str, Any] | None:
        return await (self._serve_monitor(message) if client.role == "monitor" else self._serve_worker(client, message))

    async def _serve_monitor(self, message: dict[str, Any]) -> None:
        match message.get("op"):
            case "stop":
                await self._stop.request()
            case "shutdown":
                self._ended.set()
            case op:
                raise AgentError(f"unknown request {op!r:.40} of a monitor")

    async def _serve_worker(self, client: Client, message: dict[str, Any]) -> dict[str, Any] | None:
        match message.get("op"):
            case "plan":
                return await self._loading.plan_for_worker()
            case "open":
                return await self._loading.open(int(message["rank"]), message["blocks"])
            case "bad":
                await self._loading.bad(int(message["rank"]), str(message["path"]))
            case "loaded":
                self._loading.loaded(client.local_rank)
            case "sealed":
                self._saves.sealed(client, message)
            case "skipped":
                self._saves.failed(int(message["step"]), f"rank {message['rank']}: {message['reason']}")
            case "flush":
                await self._saves.flush()
            case "bye":
                log.info("local rank %d has finished", client.local_rank)
            case op:
                raise AgentError(f"unknown request {op!r:.40} of a worker")
        return None


def run_agent(place: Place, config: CheckpointConfig, transport: Transport, deadlines: Deadlines) -> None:
    """Runs the agent to its end, then leaves the world. Does not wait longer than `leave_s` for the others to leave."""

    async def main() -> None:
        await Agent(place, config, transport, deadlines).run()

    asyncio.run(main())
    with suppress(OSError):
        (place.ram_dir / LOCK).unlink()
    with leave_within(deadlines.leave_s, "the other agents to leave", exit_code=0):
        transport.close()


LOCK = "agent.lock"


def lock_memory(ram_dir: Path, timeout_s: float) -> int:
    """Makes this process the only agent of a memory directory, until it ends; an older attempt's may take a moment to die.

    Returns:
        The lock's descriptor, to be kept open.

    Raises:
        AgentError: the directory is not ours alone, or another agent does not leave it in time.
    """
    try:
        status = os.lstat(ram_dir)
    except OSError as error:
        raise AgentError(f"memory directory {ram_dir}: {error.strerror}; the launcher's runner makes it") from None
    if not os.path.isdir(ram_dir) or os.path.islink(ram_dir) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise AgentError(
            f"memory directory {ram_dir}: mode {status.st_mode & 0o777:o} of uid {status.st_uid}, "
            f"expected a directory of mode 700 of uid {os.getuid()}; remove it"
        )
    descriptor = os.open(ram_dir / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except OSError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise AgentError(f"memory directory {ram_dir}: in use by another agent; end that one first") from None
            time.sleep(_LOCK_POLL_S)


class leave_within:
    """Ends the process when the block takes too long: MPI's collective calls know no deadline."""

    def __init__(self, timeout_s: float, waited_for: str, exit_code: int) -> None:
        self._timer = threading.Timer(timeout_s, self._leave, (timeout_s, waited_for, exit_code))
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    @staticmethod
    def _leave(timeout_s: float, waited_for: str, exit_code: int) -> None:
        log.warning("waited %g s for %s: leaving", timeout_s, waited_for)
        os._exit(exit_code)
