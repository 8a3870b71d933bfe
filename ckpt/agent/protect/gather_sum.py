"""Sums of byte ranges that are on different nodes, each range multiplied by a coefficient.

Each sum is made by one node: the one that requests it, or one of those that have terms of it. The other nodes send
their bytes, and it adds them piece by piece, all terms in one pass. So every byte is sent once, and the sum is sent
once more if another node requested it. Several sums of the same bytes with different coefficients are made together.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckpt.agent.rpc.messages import serves
from ckpt.agent.rpc.peers import Moving, PeerError, Peers, all_of
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError
from ckpt.format.shard_record import SaveId
from ckpt.redundancy.gf256 import Term, combine, multiply_add
from ckpt.redundancy.parity_record import ParitySet
from ckpt.redundancy.stripes import Sum, extents

PIECE_BYTES = 2 << 20  # with smaller pieces the turns of the event loop cost more than the CPU caches save
ARRIVING = 4  # ranges under way to one sum
HELD = 8  # ranges of a piece that are added in one pass; limits the memory for large sets
KEPT = 12  # spare buffers kept: as many as a sum of eight terms uses
LEAVING = 2  # pieces of a sum that are being sent

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HeldBytes:
    """Some bytes of a shard or a parity on a node."""

    rank: int  # the shard's rank; with `parity`, the parity's member
    parity: bool
    start: int
    nbytes: int
    at: int  # first byte in the sum

    def to_json(self) -> list[Any]:
        return [self.rank, self.parity, self.start, self.nbytes, self.at]


@dataclass(frozen=True, kw_only=True)
class Addend:
    """One node's term of one or more sums: parts that do not overlap, and a coefficient for each sum."""

    node: int
    coefficients: tuple[int, ...]
    parts: tuple[HeldBytes, ...]

    def to_json(self) -> list[Any]:
        return [self.node, list(self.coefficients), [part.to_json() for part in self.parts]]

    @classmethod
    def from_json(cls, value: list[Any]) -> Addend:
        """Raises AgentError unless every field is a whole number."""
        node, coefficients, rows = value
        parts = tuple(
            HeldBytes(rank=rank, parity=bool(parity), start=start, nbytes=nbytes, at=at)
            for rank, parity, start, nbytes, at in rows
        )
        numbers = [node, *coefficients, *(n for p in parts for n in (p.rank, p.start, p.nbytes, p.at))]
        if any(type(number) is not int or number < 0 for number in numbers) or max(coefficients, default=0) > 255:
            raise AgentError(f"malformed addend {value!r:.200}")
        return cls(node=node, coefficients=tuple(coefficients), parts=parts)


BytesHere = Callable[[SaveId, ParitySet, HeldBytes], memoryview]  # this node's shard or parity; raises AgentError
Own = tuple[tuple[int, ...], int, memoryview]  # coefficients, first byte in the sum, bytes
Sender = tuple[Addend, int]  # another node's term, and the tag under which it sends
Into = Callable[[int, int], memoryview]  # gives memory for bytes [start, stop) of a sum
Landed = Callable[[int, int], None]  # called with the bytes [start, stop) that are complete
Taker = tuple[int, int]  # the node that receives a sum, and the tag


class Sums:
    """Requests sums, makes sums, and sends this node's terms."""

    def __init__(self, peers: Peers, resolve: BytesHere) -> None:
        self._peers = peers
        self._resolve = resolve
        self._spare: list[memoryview] = []  # buffers for pieces, because new memory is slow on first use
        peers.serve(self)

    async def pull(
        self, save: SaveId, over: ParitySet, addends: Sequence[Addend], nbytes: int, room: Into,
        others: Sequence[Taker] = (), landed: Landed | None = None,
    ) -> None:  # fmt: skip
        """Fills memory with the sum of the addends, without verification. The node of the last addend makes it.

        Args:
            over: the set of the parts that are parity.
            addends: at least one. The last may have no parts: then its node only makes the sum.
            nbytes: length of the sum, at least 1.
            others: targets of the sums with the second coefficients, the third and so on. Only if this node makes it.
            landed: called with each piece once it is complete. Must return quickly.

        Raises:
            PeerError: a node refused, or nothing arrived in time; names all nodes of the sum. Bytes may still arrive
                later, so the memory must not be reused.
        """
        maker, outlets = addends[-1].node, [Outlet(self._peers, target) for target in others]
        try:
            if maker == self._peers.rank:
                making, calls = self._begin(addends, save, over, nbytes, outlets, room, landed)
            else:
                tag, rows, coming = self._peers.new_tag(), [addend.to_json() for addend in addends], pieces(nbytes)
                calls = [self._peers.call(maker, "sum", addends=rows, save=save, over=over, nbytes=nbytes, tag=tag)]
                making = self._peers.take(
                    maker, tag, (room(start, stop) for start, stop in pieces(nbytes)),
                    (lambda _: landed(*next(coming))) if landed else None,
                )  # fmt: skip
            async with Tasks() as tasks:
                receiving = tasks.hold(making)
                await all_of(calls)
                await receiving
        except PeerError as error:
            names = ", ".join(dict.fromkeys(self._peers.nodes[addend.node] for addend in addends))
            raise PeerError(f"sum over {names}: {error}") from None

    @serves("parts")
    async def _on_parts(
        self, source: int, addend: list[Any], save: SaveId, over: ParitySet, nbytes: int, tag: int
    ) -> None:
        """Answers at once. If sending fails later, the wait of the node that makes the sum times out."""
        own = self._own([Addend.from_json(addend)], save, over, nbytes)
        ranges = (
            data[first - at : last - at]
            for start, stop in pieces(nbytes)
            for _, at, data in own
            for first, last in _overlap(start, stop, at, len(data))
        )
        self._peers.push(source, tag, ranges)

    @serves("sum")
    async def _on_sum(
        self, source: int, addends: list[Any], save: SaveId, over: ParitySet, nbytes: int, tag: int
    ) -> None:
        """Answers once the other nodes have agreed to send. If making the sum fails later, the requester's wait times
        out."""
        terms, outlets = list(map(Addend.from_json, addends)), [Outlet(self._peers, (source, tag))]
        making, calls = self._begin(terms, save, over, nbytes, outlets)
        task = self._peers.tasks.start(self._pass_on(making, source))
        try:
            await all_of(calls)
        except BaseException:
            task.cancel()
            raise

    def _begin(
        self, addends: Sequence[Addend], save: SaveId, over: ParitySet, nbytes: int, outlets: Sequence[Outlet],
        room: Into | None = None, landed: Landed | None = None,
    ) -> tuple[Coroutine[Any, Any, None], list[Coroutine[Any, Any, Any]]]:  # fmt: skip
        """What makes a sum here, and the calls that have the other nodes send their terms meanwhile."""
        here = self._peers.rank
        own = self._own([addend for addend in addends if addend.node == here], save, over, nbytes)
        sources = [(addend, self._peers.new_tag()) for addend in addends if addend.node != here]
        calls = [
            self._peers.call(addend.node, "parts", addend=addend, save=save, over=over, nbytes=nbytes, tag=tag)
            for addend, tag in sources
        ]
        return self._make(sources, own, nbytes, room, outlets, landed), calls

    def _own(self, addends: Sequence[Addend], save: SaveId, over: ParitySet, nbytes: int) -> list[Own]:
        """This node's terms. Raises AgentError if it does not have their bytes."""
        own = []
        for coefficients, part in [(addend.coefficients, part) for addend in addends for part in addend.parts]:
            data = self._resolve(save, over, part)
            if part.start + part.nbytes > len(data) or part.at + part.nbytes > nbytes:
                raise AgentError(f"{part.nbytes} bytes from byte {part.start} on were requested, of {len(data)}")
            own.append((coefficients, part.at, data[part.start : part.start + part.nbytes]))
        return own

    async def _pass_on(self, making: Coroutine[Any, Any, None], to: int) -> None:
        """Makes a sum for another node."""
        try:
            await making
        except AgentError as error:
            log.warning("cannot make a sum for node %s: %s", self._peers.nodes[to], error)

    async def _make(
        self, sources: list[Sender], own: list[Own], nbytes: int, room: Into | None, outlets: Sequence[Outlet],
        landed: Landed | None,
    ) -> None:  # fmt: skip
        """Makes sums: the first one in memory from `room`, if given, and one for each outlet."""
        unmade: deque[_Piece] = deque()
        arriving: deque[_Arriving] = deque()

        async def land() -> None:
            one = arriving[0]
            await self._peers.moved(one.node, one.moving)
            arriving.popleft()
            one.piece.missing -= 1
            one.piece.terms.append(one.term)
            one.piece.buffers.append(one.buffer)
            if len(one.piece.buffers) == HELD:
                self._give_back(one.piece.add())
            await settle()

        async def settle() -> None:
            while unmade and not unmade[0].missing:
                piece = unmade.popleft()
                self._give_back(piece.add())
                if landed:
                    landed(*piece.span)
                for outlet, total in zip(outlets, piece.totals[-len(outlets) :], strict=False):
                    await outlet.send(total)
                await asyncio.sleep(0)  # lets other tasks run, because nothing here may ever have had to wait

        try:
            for start, stop in pieces(nbytes):
                ranges = [
                    (addend, tag, first, last)
                    for addend, tag in sources
                    for part in addend.parts
                    for first, last in _overlap(start, stop, part.at, part.nbytes)
                ]
                totals = [room(start, stop)] if room else []
                totals += [outlet.room(stop - start) for outlet in outlets]
                terms: list[Term] = [
                    (coefficients, first - start, data[first - at : last - at])
                    for coefficients, at, data in own
                    for first, last in _overlap(start, stop, at, len(data))
                ]
                unmade.append(piece := _Piece((start, stop), totals, terms, len(ranges)))
                for addend, tag, first, last in ranges:
                    if len(arriving) == ARRIVING:
                        await land()
                    data = (buffer := self._spare.pop() if self._spare else _room())[: last - first]
                    moving = self._peers.receive(addend.node, tag, data)
                    term = (addend.coefficients, first - start, data)
                    arriving.append(_Arriving(piece, addend.node, term, buffer, moving))
                await settle()
            while arriving:
                await land()
            for outlet in outlets:
                await outlet.finish()
        finally:
            for one in arriving:
                one.moving[0].cancel()

    def _give_back(self, buffers: list[memoryview]) -> None:
        """Keeps buffers for reuse. Nothing may be arriving in them."""
        self._spare = [*self._spare, *buffers][:KEPT]


class Outlet:
    """Sends the pieces of a sum to a node, LEAVING at a time."""

    def __init__(self, peers: Peers, target: Taker) -> None:
        self._peers = peers
        self._to, self._tag = target
        self._leaving: deque[tuple[memoryview, Moving]] = deque()
        self._spare: list[memoryview] = []

    def room(self, nbytes: int) -> memoryview:
        """Memory for a piece. Pieces must be sent in the order in which they were requested."""
        return (self._spare.pop() if self._spare else _room())[:nbytes]

    async def send(self, piece: memoryview) -> None:
        """Starts to send a piece. Raises PeerError if the receiver takes nothing in time."""
        self._leaving.append((piece, self._peers.send(self._to, self._tag, piece)))
        if len(self._leaving) == LEAVING:
            await self._sent()

    async def finish(self) -> None:
        """Returns when all pieces are sent. Raises PeerError as `send` does."""
        while self._leaving:
            await self._sent()

    async def _sent(self) -> None:
        piece, moving = self._leaving.popleft()
        await self._peers.moved(self._to, moving)
        self._spare.append(piece)


@dataclass
class _Piece:
    """A piece of the sums that are being made."""

    span: tuple[int, int]  # first byte and one past the last
    totals: list[memoryview]
    terms: list[Term]  # terms on this node that have not been added yet
    missing: int  # number of ranges that have not arrived
    buffers: list[memoryview] = field(default_factory=list)  # buffers of the terms that have arrived
    is_begun: bool = False  # whether some terms have been added

    def add(self) -> list[memoryview]:
        """Adds the terms that are on this node. Returns their buffers, which are then free."""
        if not self.is_begun:
            combine(self.totals, self.terms)
        for coefficients, at, data in self.terms if self.is_begun else ():
            multiply_add([total[at : at + len(data)] for total in self.totals], data, coefficients)
        free, self.terms, self.buffers, self.is_begun = self.buffers, [], [], True
        return free


@dataclass(frozen=True)
class _Arriving:
    """A range of another node's bytes that is being received for a piece."""

    piece: _Piece
    node: int
    term: Term
    buffer: memoryview
    moving: Moving


def _room() -> memoryview:
    return memoryview(bytearray(PIECE_BYTES))


def pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + PIECE_BYTES, nbytes)) for start in range(0, nbytes, PIECE_BYTES))


def _overlap(start: int, stop: int, at: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """The part of a piece that some bytes cover; nothing if they do not overlap."""
    first, last = max(start, at), min(stop, at + nbytes)
    if first < last:
        yield first, last


def addends_of(
    sums: Sequence[Sum], over: ParitySet, shard_at: Mapping[int, int], parity_at: Mapping[int, int]
) -> list[Addend]:
    """The terms of sums over the same bytes, by node, in the order of the first sum's terms.

    Args:
        sums: sums that differ only in their coefficients.
        shard_at: the node that holds each rank's shard.
        parity_at: the node that holds each member's parity.
    """
    addends = []
    weights = [{(term.member, term.parity): term.coefficient for term in one.terms} for one in sums]
    for term in sums[0].terms:
        coefficients = tuple(weight[term.member, term.parity] for weight in weights)
        if term.parity:
            piece = HeldBytes(rank=term.member, parity=True, start=term.start, nbytes=term.nbytes, at=0)
            addends.append(Addend(node=parity_at[term.member], coefficients=coefficients, parts=(piece,)))
            continue
        by_node: dict[int, list[HeldBytes]] = {}
        for index, start, nbytes, at in extents(over.lengths[term.member], term.start, term.nbytes):
            rank = over.ranks[term.member][index]
            piece = HeldBytes(rank=rank, parity=False, start=start, nbytes=nbytes, at=at)
            by_node.setdefault(shard_at[rank], []).append(piece)
        addends += [Addend(node=n, coefficients=coefficients, parts=tuple(parts)) for n, parts in by_node.items()]
    return addends
