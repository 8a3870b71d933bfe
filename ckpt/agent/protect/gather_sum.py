"""Sums of multiples of byte ranges on different nodes, each gathered on one of them and made there.

Whoever wants a sum names the node that makes it, itself or the last of those that have a part in it. The others send
their own bytes as they lie in memory, and it adds them up piece by piece, in one pass over all terms. Every byte
crosses one link, then the sum one more unless it is wanted where it is made. Several sums of the same bytes, each with
coefficients of its own, are made at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ckpt.agent.rpc.peers import Moving, PeerError, Peers, all_of
from ckpt.agent.tasks import Tasks
from ckpt.errors import AgentError
from ckpt.format.shard_record import SaveId
from ckpt.redundancy.gf256 import Term, combine, multiply_add
from ckpt.redundancy.parity_record import ParitySet
from ckpt.redundancy.stripes import Sum, extents

PIECE_BYTES = 2 << 20  # less costs more in turns of the event loop than the caches win
WINDOW = 4  # ranges on their way into one sum
HELD = 8  # ranges of a piece that wait to be added up in one pass: bounds the memory for sets of any size
KEPT = 12  # buffers from one sum to the next: as many as one of eight terms has in use
LEAVING = 2  # pieces of a sum on their way to who wants it

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HeldBytes:
    """Some bytes of one holding on a node."""

    rank: int  # whose shard; with `parity`, the member whose parity
    parity: bool
    start: int
    nbytes: int
    at: int  # in the sum

    def to_json(self) -> list[Any]:
        return [self.rank, self.parity, self.start, self.nbytes, self.at]


@dataclass(frozen=True, kw_only=True)
class Addend:
    """What one node adds to sums: its parts, which do not overlap, times a coefficient for each of the sums."""

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


Resolve = Callable[[dict[str, Any], HeldBytes], memoryview]  # the bytes of a part here; raises AgentError
Own = tuple[tuple[int, ...], int, memoryview]  # coefficients, first byte in the sum, bytes
Source = tuple[Addend, int]  # what another node sends, under which tag
Room = Callable[[int, int], memoryview]  # memory for some bytes of a sum
Landed = Callable[[int, int], None]
Target = tuple[int, int]  # the node that wants a sum, under which tag


class Sums:
    """One node's part in the sums of others, and its way to ask for one."""

    def __init__(self, peers: Peers, resolve: Resolve) -> None:
        self._peers = peers
        self._resolve = resolve
        self._spare: list[memoryview] = []  # buffers of a piece: the first touch of new ones costs more than adding up
        peers.serve(self)

    async def pull(
        self, save: SaveId, over: dict[str, Any], addends: Sequence[Addend], nbytes: int, room: Room,
        others: Sequence[Target] = (), landed: Landed | None = None,
    ) -> None:  # fmt: skip
        """Fills memory with the sum over the addends, made on the node of the last; not verified.

        Args:
            save: of which save the parts are.
            over: the ParitySet as JSON, for parts that are parity.
            addends: at least one; the last may be without parts, for a sum that is to be made here.
            nbytes: of the sum, more than none.
            room: the memory for its bytes [start, stop); asked for piece after piece.
            others: who takes the sums with the second coefficients, the third and so on, of one made here.
            landed: told of bytes [start, stop) as soon as they are there; must be quick.

        Raises:
            PeerError: a node refused, or nothing arrived in time; names all. Bytes may yet arrive: do not reuse the
                buffer.
            OSError: of `room`.
        """
        maker = addends[-1].node
        sources = [(addend, self._peers.new_tag()) for addend in addends if addend.node != maker]
        mine = [addend for addend in addends if addend.node == maker]
        fields: dict[str, Any] = {"save": save.to_json(), "over": over, "nbytes": nbytes}
        asked: list[tuple[int, str, dict[str, Any]]] = [
            (addend.node, "parts", {"addend": addend.to_json(), "target": maker, "tag": tag}) for addend, tag in sources
        ]
        if maker == self._peers.rank:
            outlets = [Outlet(self._peers, target) for target in others]
            own = self._own(fields, mine)
            making: Coroutine[Any, Any, None] = self._make(sources, own, nbytes, room, outlets, landed)
        else:
            tag = self._peers.new_tag()
            terms = {
                "own": [addend.to_json() for addend in mine],
                "others": [(addend.to_json(), tag) for addend, tag in sources],
            }
            asked.append((maker, "sum", {**terms, "target": self._peers.rank, "tag": tag}))
            coming = pieces(nbytes)
            making = self._peers.take(
                maker, tag, (room(start, stop) for start, stop in pieces(nbytes)),
                (lambda _: landed(*next(coming))) if landed else None,
            )  # fmt: skip
        calls = [self._peers.call(node, op, **more, **fields) for node, op, more in asked]
        try:
            async with Tasks() as tasks:
                receiving = tasks.hold(making)
                await all_of(calls)
                await receiving
        except PeerError as error:
            names = ", ".join(dict.fromkeys(self._peers.nodes[addend.node] for addend in addends))
            raise PeerError(f"sum over {names}: {error}") from None

    async def _on_parts(self, source: int, message: dict[str, Any]) -> None:
        """Answers at once; what fails later shows where the sum is made, where nothing more arrives."""
        own = self._own(message, [Addend.from_json(message["addend"])])
        ranges = (
            data[first - at : last - at]
            for start, stop in pieces(message["nbytes"])
            for _, at, data in own
            for first, last in _overlap(start, stop, at, len(data))
        )
        self._peers.push(message["target"], message["tag"], ranges)

    async def _on_sum(self, source: int, message: dict[str, Any]) -> None:
        """Answers at once; what fails later shows where the sum is wanted, where nothing more arrives."""
        own = self._own(message, [Addend.from_json(addend) for addend in message["own"]])
        sources = [(Addend.from_json(addend), tag) for addend, tag in message["others"]]
        self._peers.tasks.start(self._pass_on(sources, own, message["nbytes"], message["target"], message["tag"]))

    def _own(self, message: dict[str, Any], addends: Sequence[Addend]) -> list[Own]:
        own = []
        for coefficients, part in [(addend.coefficients, part) for addend in addends for part in addend.parts]:
            data = self._resolve(message, part)
            if part.start + part.nbytes > len(data) or part.at + part.nbytes > message["nbytes"]:
                raise AgentError(f"{part.nbytes} bytes from {part.start} of {len(data)} asked for")
            own.append((coefficients, part.at, data[part.start : part.start + part.nbytes]))
        return own

    async def _pass_on(self, sources: list[Source], own: list[Own], nbytes: int, to: int, tag: int) -> None:
        """Makes a sum for another node."""
        try:
            await self._make(sources, own, nbytes, None, [Outlet(self._peers, (to, tag))])
        except AgentError as error:
            log.warning("a sum for node %s: %s", self._peers.nodes[to], error)

    async def _make(
        self, sources: list[Source], own: list[Own], nbytes: int, room: Room | None, outlets: Sequence[Outlet],
        landed: Landed | None = None,
    ) -> None:  # fmt: skip
        """Makes sums: the first in the memory that `room` has for each piece, if any, the others for the outlets."""
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
                await asyncio.sleep(0)  # the loop has other duties, and nothing here may have to be waited for

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
                    if len(arriving) == WINDOW:
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
        """Buffers that nothing arrives in any more."""
        self._spare = [*self._spare, *buffers][:KEPT]


class Outlet:
    """The pieces of a sum on their way to the node that wants it, a few at a time."""

    def __init__(self, peers: Peers, target: Target) -> None:
        self._peers = peers
        self._to, self._tag = target
        self._leaving: deque[tuple[memoryview, Moving]] = deque()
        self._spare: list[memoryview] = []

    def room(self, nbytes: int) -> memoryview:
        """Memory for a piece, to be sent in the order in which it was asked for."""
        return (self._spare.pop() if self._spare else _room())[:nbytes]

    async def send(self, piece: memoryview) -> None:
        """Raises PeerError when nothing is taken for too long."""
        self._leaving.append((piece, self._peers.send(self._to, self._tag, piece)))
        if len(self._leaving) == LEAVING:
            await self._sent()

    async def finish(self) -> None:
        """Returns when all are sent; raises PeerError as `send` does."""
        while self._leaving:
            await self._sent()

    async def _sent(self) -> None:
        piece, moving = self._leaving.popleft()
        await self._peers.moved(self._to, moving)
        self._spare.append(piece)


@dataclass
class _Piece:
    """A piece of sums that are being made."""

    span: tuple[int, int]  # first byte and one past the last
    totals: list[memoryview]
    terms: list[Term]  # here, and not yet added
    missing: int  # ranges that have not arrived
    buffers: list[memoryview] = field(default_factory=list)  # that hold terms
    is_begun: bool = False  # some have been added

    def add(self) -> list[memoryview]:
        """Adds what is here; returns the buffers that are free then."""
        if not self.is_begun:
            combine(self.totals, self.terms)
        for coefficients, at, data in self.terms if self.is_begun else ():
            multiply_add([total[at : at + len(data)] for total in self.totals], data, coefficients)
        free, self.terms, self.buffers, self.is_begun = self.buffers, [], [], True
        return free


@dataclass(frozen=True)
class _Arriving:
    """A range of another node's bytes on its way into a piece."""

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
    """What a piece has of some bytes, if anything."""
    first, last = max(start, at), min(stop, at + nbytes)
    if first < last:
        yield first, last


def addends_of(
    sums: Sequence[Sum], over: ParitySet, shard_at: Mapping[int, int], parity_at: Mapping[int, int]
) -> list[Addend]:
    """The terms of sums over the same bytes, by the nodes that have them.

    Args:
        sums: what is wanted: they differ in coefficients alone. Terms come in the order of the first one's.
        over: the set they are part of.
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
