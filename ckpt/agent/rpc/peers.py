"""Calls and byte transfers between the agents of an attempt; each has a deadline that names the node waited for."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ckpt.agent.rpc.framing import decode
from ckpt.agent.rpc.messages import OF_AGENTS, check, check_answer, deadline_of
from ckpt.agent.rpc.transport import MAX_MESSAGE_BYTES, Transfer, Transport, TransportError
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError, CheckpointError
from ckpt.format.atomic_files import dump_json
from ckpt.timeouts import AgentDeadlines
from holdfast.base.deadlines import within
from holdfast.base.messages import kind_of, plain

T = TypeVar("T")
Moving = tuple[Transfer, "asyncio.Future[None]"]  # a range under way, and the future that its end completes
Handler = Callable[..., Awaitable[dict[str, Any] | None]]  # called with the sender's node rank and the message's fields

WINDOW = 8  # ranges under way at once in one direction of a transfer: uses the full bandwidth and limits memory use
TURN = 4  # ranges that a transfer completes at most before other tasks of the event loop run
SPIN_S, SPIN_MOVING_S = 0.002, 0.2  # of silence: polls without a pause until then; the second while bytes are moving
IDLE_POLL_S = 0.02  # between polls of the transport while it is idle: about 1% of a core

log = logging.getLogger(__name__)


class PeerError(AgentError):
    """A call to other nodes' agents failed: refused, no answer in time, or no connection. Names every such node."""


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of concurrent calls. Waits until all have ended, then raises PeerError with all failures."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    if failed := [result for result in results if isinstance(result, BaseException)]:
        raise PeerError("; ".join(map(str, failed)))
    return [result for result in results if not isinstance(result, BaseException)]


class Peers:
    """Calls and transfers between this agent and all agents of the attempt, itself included.

    Nothing else uses the transport.
    """

    def __init__(self, transport: Transport, nodes: Sequence[str], deadlines: AgentDeadlines) -> None:
        self.rank = transport.rank
        self.nodes = tuple(nodes)
        self.broken: str | None = None  # the reason why the MPI world cannot be used any more; None: it can
        self._transport = transport
        self.deadlines = deadlines
        self._handlers: dict[str, Handler] = {}
        self._replies: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._transfers: list[Moving] = []
        self.tasks = Tasks()  # tasks that serve other nodes
        self._numbers = itertools.count(1)  # of calls
        self._tags = itertools.count()
        self._active_s = 0.0

    def serve(self, part: object) -> None:
        """Handles calls with those methods of an object that are marked by `serves`.

        The caller gets their exceptions as a PeerError.

        Raises:
            ValueError: a message has a handler already, or the method takes other fields than it has.
        """
        for name, method in inspect.getmembers(type(part), lambda member: hasattr(member, "serves")):
            op, what = method.serves, f"{type(part).__name__}.{name}"
            if op in self._handlers:
                raise ValueError(f"{what}: {op!r} has a handler already, {self._handlers[op].__qualname__}")
            expected = {"self", "source", *kind_of(op, *OF_AGENTS).fields.types}
            if (got := inspect.signature(method).parameters.keys()) != expected:
                raise ValueError(f"{what}: takes {', '.join(got)}, expected {', '.join(sorted(expected))} of {op!r}")
            self._handlers[op] = getattr(part, name)

    async def call(self, node: int, op: str, *, timeout_s: float | None = None, **fields: Any) -> dict[str, Any]:
        """Calls one node, and returns its answer. Raises PeerError.

        Args:
            timeout_s: the deadline; None: the one in the catalogue of messages.
            fields: the message's fields.
        """
        timeout_s = timeout_s or float(getattr(self.deadlines, deadline_of(op)))
        message = {"op": op, **plain(fields)}
        try:
            serve = self._serve(node, message) if node == self.rank else self._remote(node, message)
            answer = await within(timeout_s, serve)
        except TimeoutError:
            raise PeerError(f"node {self.nodes[node]}: no answer to {op!r} within {timeout_s:g} s") from None
        except TransportError as error:
            raise PeerError(f"node {self.nodes[node]}: {op}: {error}") from None
        if "error" in answer:
            raise PeerError(f"node {self.nodes[node]}: {op}: {answer['error']}")
        try:
            return check_answer(op, answer, *OF_AGENTS)
        except CheckpointError as error:
            raise PeerError(f"node {self.nodes[node]}: {error}") from None

    async def call_all(self, op: str, nodes: Iterable[int] | None = None, **fields: Any) -> list[dict[str, Any]]:
        """Calls some nodes (None: all) concurrently. Returns the answers in the order of the nodes.

        Raises:
            PeerError: some calls failed; names every such node, once all calls have ended.
        """
        nodes = range(len(self.nodes)) if nodes is None else nodes
        return await all_of(self.call(node, op, **fields) for node in nodes)

    async def call_each(self, op: str, ranks: Mapping[int, list[int]], **fields: Any) -> list[dict[str, Any]]:
        """As `call_all`, for a message with its own `ranks` for each node. Raises the first PeerError at once."""
        return list(await asyncio.gather(*(self.call(node, op, ranks=own, **fields) for node, own in ranks.items())))

    async def pull(
        self, node: int, op: str, into: Iterable[memoryview], *,
        landed: Callable[[memoryview], None] | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """Fills byte ranges with bytes that a node's handler of `op` pushes.

        Args:
            op: a message with a field `tag`. Its handler must `push` ranges of the same lengths in the same order to
                the caller, under this tag.
            into: writable ranges, none empty.
            landed: called with each range, in order, once it has arrived. Must return quickly.

        Raises:
            PeerError: the node refused, or nothing arrived in time. Bytes may still arrive later, so the memory must
                not be reused.
        """
        tag = self.new_tag()
        async with Tasks() as tasks:
            receiving = tasks.hold(self.take(node, tag, into, landed))
            await self.call(node, op, tag=tag, **fields)
            await receiving

    def push(self, node: int, tag: int, ranges: Iterable[memoryview]) -> None:
        """Sends ranges in the background. If that fails, the receiver's wait times out."""
        self.tasks.start(self._push(node, tag, ranges))

    async def take(
        self, node: int, tag: int, into: Iterable[memoryview], landed: Callable[[memoryview], None] | None = None
    ) -> None:
        """Receives ranges, WINDOW at a time. Raises PeerError if nothing arrives in time."""
        await self._stream(node, lambda piece: self.receive(node, tag, piece), into, landed)

    def new_tag(self) -> int:
        """A tag for ranges that this node receives. Reused only after all others, which are at least 32,767.

        Receivers choose the tags, and MPI compares sender and receiver too. So other nodes may use the same tags.
        """
        return next(self._tags) % self._transport.max_tag + 1

    def receive(self, node: int, tag: int, into: memoryview) -> Moving:
        """Starts to receive one range; `moved` waits for its end. Raises TransportError."""
        return self._start(self._transport.receive_range, node, tag, into)

    def send(self, node: int, tag: int, data: memoryview) -> Moving:
        """Starts to send one range; `moved` waits for its end. Raises TransportError."""
        return self._start(self._transport.send_range, node, tag, data)

    async def moved(self, node: int, moving: Moving) -> None:
        """Waits until a range has been sent or received. Raises PeerError if that takes longer than `stall_s`."""
        waiter = moving[1]
        if not waiter.done():
            self._look()
        if not waiter.done():  # asyncio.wait_for takes longer than the copy of a piece
            alarm = asyncio.get_running_loop().call_later(self.deadlines.stall_s, self._stalled, node, waiter)
            try:
                await asyncio.shield(waiter)
            finally:
                alarm.cancel()
        waiter.result()

    def _stalled(self, node: int, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_exception(PeerError(f"node {self.nodes[node]}: no bytes moved for {self.deadlines.stall_s:g} s"))

    async def run(self) -> None:
        """Polls the transport until cancelled or until it fails. Then `broken` has the reason, and every call fails."""
        if self._transport.size == 1:
            return  # no other node can send anything
        while not self.broken:
            try:
                moved = self._poll()
            except AgentError as error:
                self._break(str(error))
                break
            except Exception as error:
                log.exception("malformed message of another agent")
                self._break(f"{type(error).__name__}: {error}")
                break
            if moved:
                self._active_s = time.monotonic()
            idle_s = time.monotonic() - self._active_s
            spins = idle_s < (SPIN_MOVING_S if self._transfers else SPIN_S)
            await asyncio.sleep(0 if spins else min(IDLE_POLL_S, idle_s / 10))  # adds at most a tenth to a call's time

    def _poll(self) -> bool:
        """Handles arrived messages and completed transfers. Returns whether there were any."""
        moved = False
        while (arrived := self._transport.receive()) is not None:
            moved = True
            source, body = arrived
            message = decode(body)
            if "re" not in message:
                self.tasks.start(self._answer(source, message))
            elif type(number := message.pop("re")) is int and (reply := self._replies.get(number)) and not reply.done():
                reply.set_result(message)
        return self._finish() or moved

    def _look(self) -> None:
        """Completes finished transfers now, which takes less time than to wait for the next turn of the event loop."""
        try:
            self._finish()
        except TransportError as error:
            self._break(str(error))

    def _finish(self) -> bool:
        """Completes the futures of finished transfers. Returns whether there were any."""
        done = self._transport.done([transfer for transfer, _ in self._transfers]) if self._transfers else []
        for _, waiter in [self._transfers[i] for i in done]:
            if not waiter.done():
                waiter.set_result(None)
        for i in sorted(done, reverse=True):
            del self._transfers[i]
        return bool(done)

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
        number = message.get("id")
        try:
            try:
                self._send(source, {"re": number, **answer})
            except PeerError as error:
                self._send(source, {"re": number, "error": str(error)})
        except TransportError as error:
            log.warning("cannot answer %r of node %s: %s", message.get("op"), self.nodes[source], error)

    async def _serve(self, source: int, message: dict[str, Any]) -> dict[str, Any]:
        """The handler's answer, or {"error": reason}."""
        handler = self._handlers.get(str(message.get("op")))
        if handler is None:
            return {"error": "unknown call"}
        try:
            return plain(await handler(source, **check(message, *OF_AGENTS)) or {})
        except (CheckpointError, OSError) as error:
            return {"error": str(error)}
        except Exception as error:
            log.exception("serving %r of node %s", message["op"], self.nodes[source])
            return {"error": f"{type(error).__name__}: {error}"}

    def _send(self, node: int, message: dict[str, Any]) -> None:
        """Raises PeerError for a message that is too long, TransportError if the world is broken."""
        if self.broken:
            raise TransportError(self.broken)
        body = dump_json(message)
        if len(body) > MAX_MESSAGE_BYTES:
            raise PeerError(
                f"message to node {self.nodes[node]}: {len(body)} bytes of JSON, expected at most {MAX_MESSAGE_BYTES}; "
                "the state holds too many or too large Python values, keep bulk data in tensors"
            )
        try:
            self._transport.send(node, body)
        except TransportError as error:
            self._break(str(error))
            raise

    async def _push(self, node: int, tag: int, ranges: Iterable[memoryview]) -> None:
        try:
            await self._stream(node, lambda piece: self.send(node, tag, piece), ranges)
        except AgentError as error:
            log.warning("cannot send bytes to node %s: %s", self.nodes[node], error)

    async def _stream(
        self, node: int, start: Callable[[memoryview], Moving], ranges: Iterable[memoryview],
        landed: Callable[[memoryview], None] | None = None,
    ) -> None:  # fmt: skip
        """Starts the ranges in order, at most WINDOW at a time. Returns when all have ended."""
        under_way: deque[tuple[memoryview, Moving]] = deque()
        count = itertools.count(1)

        async def finish_first() -> None:
            piece, moving = under_way[0]
            await self.moved(node, moving)
            under_way.popleft()
            if landed is not None:
                landed(piece)
            if next(count) % TURN == 0:
                await asyncio.sleep(0)

        try:
            for piece in ranges:
                if len(under_way) == WINDOW:
                    await finish_first()
                under_way.append((piece, start(piece)))
            while under_way:
                await finish_first()
        finally:
            for _, (transfer, _) in under_way:
                transfer.cancel()

    def _start(
        self, begin: Callable[[int, int, memoryview], Transfer], node: int, tag: int, data: memoryview
    ) -> Moving:
        if self.broken:
            raise TransportError(self.broken)
        moving = (begin(node, tag, data), asyncio.get_running_loop().create_future())
        self._transfers.append(moving)
        return moving

    def _break(self, reason: str) -> None:
        """Marks the world as unusable, and fails all waits at once instead of at their deadlines."""
        self.broken = self.broken or reason
        waiters: list[asyncio.Future[Any]] = [*self._replies.values(), *(waiter for _, waiter in self._transfers)]
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(TransportError(reason))
                waiter.exception()  # marks it as retrieved, because not every waiter is awaited any more
