"""Calls and byte transfers between the agents of an attempt; each has a deadline that names the node waited for."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from ckpt.agent import flows
from ckpt.agent.flows import Flows, Landed, StalledError, Steps
from ckpt.agent.messages import decode
from ckpt.errors import AgentError, CheckpointError
from ckpt.record.files import dump_json
from ckpt.transport import Transfer, Transport, TransportError

Handler = Callable[[int, dict[str, Any]], Awaitable[dict[str, Any] | None]]

_TURN_S = 0.002  # of this thread's work on what comes, before the event loop has its turn
_TRIES = 20  # and looks in vain
IDLE_POLL_S = 0.02  # between looks when nothing is under way: about 1% of a core
_MAX_TAG = 1 << 30

log = logging.getLogger(__name__)


class PeerError(AgentError):
    """Another node's agent refused, did not answer in time, or cannot be reached. Names every node concerned."""


class Peers:
    """This agent's view of all agents, itself included; its loop is the only user of the transport."""

    def __init__(self, transport: Transport, nodes: Sequence[str]) -> None:
        self.rank = transport.rank
        self.nodes = tuple(nodes)
        self.broken: str | None = None  # why the world is of no further use
        self._transport = transport
        self._handlers: dict[str, Handler] = {}
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._flows = Flows()
        self._tasks: set[asyncio.Future[None]] = set()
        self._numbers = itertools.count(1)
        self._active_s = 0.0
        self._in_use = asyncio.Event()  # bytes have been under way

    def handle(self, op: str, handler: Handler) -> None:
        """Serves calls of `op` from any node; what the handler raises becomes the caller's PeerError."""
        self._handlers[op] = handler

    async def call(self, node: int, op: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """One call; raises PeerError."""
        message = {"op": op, **fields}
        try:
            serve = self._serve(node, message) if node == self.rank else self._remote(node, message)
            answer = await asyncio.wait_for(serve, timeout_s)
        except asyncio.TimeoutError:
            raise PeerError(f"node {self.nodes[node]}: no answer to {op!r} within {timeout_s:g} s") from None
        except TransportError as error:
            raise PeerError(f"node {self.nodes[node]}: {op}: {error}") from None
        if "error" in answer:
            raise PeerError(f"node {self.nodes[node]}: {op}: {answer['error']}")
        return answer

    async def call_all(self, op: str, *, timeout_s: float, **fields: Any) -> list[dict[str, Any]]:
        """The same call to every node at once; answers by node rank.

        Raises:
            PeerError: some node failed; names every one that did, after all have answered or run out of time.
        """
        calls = [self.call(node, op, timeout_s=timeout_s, **fields) for node in range(len(self.nodes))]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        if failed := [answer for answer in answers if isinstance(answer, BaseException)]:
            raise PeerError("; ".join(map(str, failed)))
        return [answer for answer in answers if isinstance(answer, dict)]

    async def pull(
        self, node: int, op: str, into: Iterable[memoryview], *, timeout_s: float,
        landed: Landed = flows.nobody, **fields: Any,
    ) -> None:  # fmt: skip
        """Fills the ranges with what the node's handler of `op` pushes under the tag that it is given.

        Args:
            node: who sends.
            op: its handler must `push` ranges of the same lengths in the same order, to the caller, under `tag`.
            into: writable ranges, none empty.
            timeout_s: for the answer to the call; the bytes themselves may take as long as they keep coming.
            landed: told of bytes of all ranges together, in order, as soon as they are there; must be quick.

        Raises:
            PeerError: refused, or nothing arrived for STALL_S. Bytes may yet arrive later: do not reuse the buffer.
        """
        tag = self.new_tag()
        receiving = asyncio.ensure_future(self.take(node, tag, into, landed))
        try:
            await self.call(node, op, timeout_s=timeout_s, tag=tag, **fields)
            await receiving
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    def push(self, node: int, tag: int, ranges: Iterable[memoryview]) -> None:
        """Sends ranges in the background; a failure shows at the receiver's end."""
        self.pass_by(node, self.sending(node, tag, ranges))

    def sending(self, node: int, tag: int, ranges: Iterable[memoryview]) -> Steps:
        """The flow that sends ranges as they lie in memory."""
        return self._flows.sending(node, lambda piece: self.send(node, tag, piece), ranges)

    def pass_by(self, node: int, steps: Steps) -> None:
        """Runs a flow to a node in the background; a failure shows at its other end."""
        self.spawn(self._pass_by(node, steps))

    def spawn(self, work: Awaitable[None]) -> None:
        self._tasks.add(task := asyncio.ensure_future(work))
        task.add_done_callback(self._tasks.discard)

    async def take(self, node: int, tag: int, into: Iterable[memoryview], landed: Landed = flows.nobody) -> None:
        """Receives ranges, a few at a time; raises PeerError when nothing moves for STALL_S."""
        await self._flow(self._flows.receiving(node, lambda piece: self.receive(node, tag, piece), into, landed))

    def new_tag(self) -> int:
        """A tag that no other node chooses too, and that this one has not chosen for long."""
        return (next(self._numbers) * len(self.nodes) + self.rank) % _MAX_TAG + 1

    def receive(self, node: int, tag: int, into: memoryview) -> Transfer:
        """Starts to receive one range, for a flow. Raises TransportError."""
        return self._start(self._transport.receive_range, node, tag, into)

    def send(self, node: int, tag: int, data: memoryview) -> Transfer:
        """Starts to send one range, for a flow. Raises TransportError."""
        return self._start(self._transport.send_range, node, tag, data)

    def give_up(self, transfers: Iterable[Transfer]) -> None:
        """What a flow that is cut short has under way."""
        self._flows.give_up(transfers)

    async def run(self) -> None:
        """Serves the transport until cancelled, or until it breaks (then `broken` says why, and every call fails)."""
        delay_s = 0.0
        if self._transport.size == 1:
            await self._in_use.wait()  # there is nothing to poll, unless this node sends itself something
        while not self.broken:
            try:
                moved = self._poll()
            except AgentError as error:
                self._break(str(error))
                break
            except Exception as error:
                log.exception("a message that cannot be understood")
                self._break(f"{type(error).__name__}: {error}")
                break
            if moved:
                self._active_s, delay_s = time.monotonic(), 0.0
            elif time.monotonic() - self._active_s > (0.2 if self._flows or self._replies else 0.002):
                delay_s = min(IDLE_POLL_S, 2 * delay_s + 0.0001)
            else:
                os.sched_yield()  # to who has work on this core: whoever is waited for perhaps
            await asyncio.sleep(delay_s)

    def _poll(self) -> bool:
        """Takes what has arrived; while bytes are under way, for a while. True when anything has come.

        A turn of the event loop costs as much as the copy of a piece: as long as only pieces come it has none.
        """
        moved, tries, since_s = False, 0, time.thread_time()
        while True:
            called = self._take_messages()
            went = self._flows.advance()
            moved |= called or went
            tries = 0 if went else tries + 1
            if called or not self._flows or self._flows.ended or tries > _TRIES:
                return moved
            if time.thread_time() - since_s > _TURN_S:
                return moved
            if not went:
                os.sched_yield()

    def _take_messages(self) -> bool:
        taken = False
        while (arrived := self._transport.receive()) is not None:
            taken = True
            source, body = arrived
            message = decode(body)
            if "re" not in message:
                self.spawn(self._answer(source, message))
            elif type(number := message["re"]) is int and (reply := self._replies.get(number)) and not reply.done():
                reply.set_result(message)
        return taken

    async def _remote(self, node: int, message: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(node, {"id": number, **message})
            return await reply
        finally:
            del self._replies[number]

    async def _answer(self, source: int, message: dict[str, Any]) -> None:
        answer = await self._serve(source, message)
        try:
            self._send(source, {"re": message.get("id"), **answer})
        except TransportError as error:
            log.warning("answering %r of node %s: %s", message.get("op"), self.nodes[source], error)

    async def _serve(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """The handler's answer, or {"error": why there is none}."""
        handler = self._handlers.get(str(message.get("op")))
        if handler is None:
            return {"error": "unknown call"}
        try:
            return await handler(source, message) or {}
        except (CheckpointError, OSError) as error:
            return {"error": str(error)}
        except Exception as error:
            log.exception("serving %r of node %s", message["op"], self.nodes[source])
            return {"error": f"{type(error).__name__}: {error}"}

    def _send(self, node: int, message: dict[str, Any]) -> None:
        if self.broken:
            raise TransportError(self.broken)
        try:
            self._transport.send(node, dump_json(message))
        except TransportError as error:
            self._break(str(error))
            raise

    async def _pass_by(self, node: int, steps: Steps) -> None:
        try:
            await self._flow(steps)
        except AgentError as error:
            log.warning("sending to node %s: %s", self.nodes[node], error)

    async def _flow(self, steps: Steps) -> None:
        self._in_use.set()
        try:
            await self._flows.run(steps)
        except StalledError as stalled:
            name = self.nodes[stalled.node]
            raise PeerError(f"node {name}: no bytes moved for {flows.STALL_S:g} s") from None

    def _start(
        self, begin: Callable[[int, int, memoryview], Transfer], node: int, tag: int, data: memoryview
    ) -> Transfer:
        if self.broken:
            raise TransportError(self.broken)
        return begin(node, tag, data)

    def _break(self, reason: str) -> None:
        """The world is gone: whoever waits learns it now, not at its deadline."""
        self.broken = self.broken or reason
        self._flows.fail(TransportError(reason))
        for waiter in self._replies.values():
            if not waiter.done():
                waiter.set_exception(TransportError(reason))
                waiter.exception()  # marks it as seen: not every waiter is awaited any more
