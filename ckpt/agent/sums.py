"""Sums of multiples of byte ranges on different nodes, each gathered on one of them and made there.

Whoever wants a sum names the node that makes it, itself or the last of those that have a part in it. The others send
their own bytes as they lie in memory, and it adds them up piece by piece while its caches have them. Every byte is read
once and crosses one link, then the sum one more unless it is wanted where it is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt.agent.exchange import save_to_json
from ckpt.agent.peers import Moving, PeerError, Peers
from ckpt.errors import AgentError
from ckpt.record.shard import SaveId
from ckpt.redundancy.galois import multiply_add

PIECE_BYTES = 2 << 20  # less costs more in turns of the event loop than the caches win
WINDOW = 2  # ranges on their way into one sum
LEAVING = 2  # pieces of a sum on their way to who wants it

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Part:
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
    """What one node adds to a sum: its parts, which do not overlap, times a coefficient."""

    node: int
    coefficient: int
    parts: tuple[Part, ...]

    def to_json(self) -> list[Any]:
        return [self.node, self.coefficient, [part.to_json() for part in self.parts]]

    @classmethod
    def from_json(cls, value: list[Any]) -> Addend:
        """Raises AgentError unless every field is a whole number."""
        node, coefficient, rows = value
        parts = tuple(
            Part(rank=rank, parity=bool(parity), start=start, nbytes=nbytes, at=at)
            for rank, parity, start, nbytes, at in rows
        )
        numbers = [node, coefficient, *(n for p in parts for n in (p.rank, p.start, p.nbytes, p.at))]
        if any(type(number) is not int or number < 0 for number in numbers) or coefficient > 255:
            raise AgentError(f"malformed addend {value!r:.200}")
        return cls(node=node, coefficient=coefficient, parts=parts)


Resolve = Callable[[dict[str, Any], Part], memoryview]  # the bytes of a part here; raises AgentError
Own = tuple[int, int, memoryview]  # coefficient, first byte in the sum, bytes
Source = tuple[Addend, int]  # what another node sends, under which tag


class Sums:
    """One node's part in the sums of others, and its way to ask for one."""

    def __init__(self, peers: Peers, resolve: Resolve, timeout_s: float) -> None:
        self._peers = peers
        self._resolve = resolve
        self._timeout_s = timeout_s
        peers.handle("parts", self._serve)
        peers.handle("sum", self._serve_sum)

    async def pull(self, save: SaveId, over: dict[str, Any], addends: Sequence[Addend], into: memoryview) -> None:
        """Fills `into` with the sum over the addends, made on the node of the last; not verified.

        Args:
            save: of which save the parts are.
            over: the ParitySet as JSON, for parts that are parity.
            addends: at least one; the last may be without parts, for a sum that is to be made here.
            into: not empty.

        Raises:
            PeerError: a node refused, or nothing arrived in time; names all. Bytes may yet arrive: do not reuse the
                buffer.
        """
        maker = addends[-1].node
        sources = [(addend, self._peers.new_tag()) for addend in addends if addend.node != maker]
        mine = [addend for addend in addends if addend.node == maker]
        fields = {"save": save_to_json(save), "over": over, "nbytes": len(into)}
        asked: list[tuple[int, str, dict[str, Any]]] = [
            (addend.node, "parts", {"addend": addend.to_json(), "target": maker, "tag": tag}) for addend, tag in sources
        ]
        if maker == self._peers.rank:
            making: Coroutine[Any, Any, None] = self._make(
                sources, self._own(fields, mine), len(into), lambda start, stop: into[start:stop]
            )
        else:
            tag = self._peers.new_tag()
            terms = {
                "own": [addend.to_json() for addend in mine],
                "sources": [(addend.to_json(), tag) for addend, tag in sources],
            }
            asked.append((maker, "sum", {**terms, "target": self._peers.rank, "tag": tag}))
            making = self._peers.take(maker, tag, (into[start:stop] for start, stop in _pieces(len(into))))
        calls = [self._peers.call(node, op, timeout_s=self._timeout_s, **more, **fields) for node, op, more in asked]
        receiving = asyncio.ensure_future(making)
        try:
            answers = await asyncio.gather(*calls, return_exceptions=True)
            if refused := [str(answer) for answer in answers if isinstance(answer, BaseException)]:
                raise PeerError("; ".join(refused))
            await receiving
        except PeerError as error:
            names = ", ".join(dict.fromkeys(self._peers.nodes[addend.node] for addend in addends))
            raise PeerError(f"sum over {names}: {error}") from None
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _serve(self, source: int, message: dict[str, Any]) -> None:
        """Answers at once; what fails later shows where the sum is made, where nothing more arrives."""
        own = self._own(message, [Addend.from_json(message["addend"])])
        ranges = (
            data[first - at : last - at]
            for start, stop in _pieces(message["nbytes"])
            for _, at, data in own
            for first, last in _overlap(start, stop, at, len(data))
        )
        self._peers.push(message["target"], message["tag"], ranges)

    async def _serve_sum(self, source: int, message: dict[str, Any]) -> None:
        """Answers at once; what fails later shows where the sum is wanted, where nothing more arrives."""
        own = self._own(message, [Addend.from_json(addend) for addend in message["own"]])
        sources = [(Addend.from_json(addend), tag) for addend, tag in message["sources"]]
        self._peers.spawn(self._pass_on(sources, own, message["nbytes"], message["target"], message["tag"]))

    def _own(self, message: dict[str, Any], addends: Sequence[Addend]) -> list[Own]:
        own = []
        for coefficient, part in [(addend.coefficient, part) for addend in addends for part in addend.parts]:
            data = self._resolve(message, part)
            if part.start + part.nbytes > len(data) or part.at + part.nbytes > message["nbytes"]:
                raise AgentError(f"{part.nbytes} bytes from {part.start} of {len(data)} asked for")
            own.append((coefficient, part.at, data[part.start : part.start + part.nbytes]))
        return own

    async def _pass_on(self, sources: list[Source], own: list[Own], nbytes: int, to: int, tag: int) -> None:
        """Makes a sum for another node."""
        leaving: deque[tuple[memoryview, Moving]] = deque()
        spare: list[memoryview] = []

        async def send(total: memoryview) -> None:
            leaving.append((total, self._peers.send(to, tag, total)))
            if len(leaving) == LEAVING:
                total, moving = leaving.popleft()
                await self._peers.moved(to, moving)
                spare.append(total)

        try:
            await self._make(sources, own, nbytes, lambda start, stop: _room(spare)[: stop - start], send)
            for _, moving in leaving:
                await self._peers.moved(to, moving)
        except AgentError as error:
            log.warning("a sum for node %s: %s", self._peers.nodes[to], error)

    async def _make(
        self, sources: list[Source], own: list[Own], nbytes: int, room: Callable[[int, int], memoryview],
        made: Callable[[memoryview], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        """Makes a sum in the memory that `room` has for each piece; `made` is given each, in order, when it is whole.

        Of each piece the first range that can goes straight to its place, the others are added there.
        """
        unmade: deque[_Piece] = deque()
        arriving: deque[_Arriving] = deque()
        spare: list[memoryview] = []

        async def land() -> None:
            one = arriving[0]
            await self._peers.moved(one.node, one.moving)
            arriving.popleft()
            if one.buffer is not None:
                multiply_add(one.into, one.buffer[: len(one.into)], one.coefficient)
                spare.append(one.buffer)
            one.piece.missing -= 1
            await settle()

        async def settle() -> None:
            while unmade and not unmade[0].missing:
                piece = unmade.popleft()
                for coefficient, at, data in own:
                    for first, last in _overlap(piece.start, piece.stop, at, len(data)):
                        multiply_add(piece.of(first, last), data[first - at : last - at], coefficient)
                if made is not None:
                    await made(piece.total)
                await asyncio.sleep(0)  # the loop has other duties, and nothing here may have to be waited for

        try:
            for start, stop in _pieces(nbytes):
                ranges = [
                    (addend, tag, first, last)
                    for addend, tag in sources
                    for part in addend.parts
                    for first, last in _overlap(start, stop, part.at, part.nbytes)
                ]
                unmade.append(piece := _Piece(start, stop, room(start, stop), len(ranges)))
                in_place = bool(ranges) and ranges[0][0].coefficient == 1 and ranges[0][2:] == (start, stop)
                if not in_place:
                    piece.total[:] = bytes(stop - start)
                for number, (addend, tag, first, last) in enumerate(ranges):
                    if len(arriving) == WINDOW:
                        await land()
                    into = piece.of(first, last)
                    buffer = None if in_place and number == 0 else _room(spare)
                    moving = self._peers.receive(addend.node, tag, into if buffer is None else buffer[: last - first])
                    arriving.append(_Arriving(piece, addend.node, addend.coefficient, into, buffer, moving))
                await settle()
            while arriving:
                await land()
        finally:
            for one in arriving:
                one.moving[0].cancel()


@dataclass
class _Piece:
    """A piece of a sum that is being made."""

    start: int
    stop: int
    total: memoryview
    missing: int  # ranges that have not arrived

    def of(self, first: int, last: int) -> memoryview:
        """Its memory for a range of the sum."""
        return self.total[first - self.start : last - self.start]


@dataclass(frozen=True)
class _Arriving:
    """A range of another node's bytes on its way into a piece."""

    piece: _Piece
    node: int
    coefficient: int
    into: memoryview
    buffer: memoryview | None  # where it arrives, if not in its place
    moving: Moving


def _room(spare: list[memoryview]) -> memoryview:
    return spare.pop() if spare else memoryview(bytearray(PIECE_BYTES))


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + PIECE_BYTES, nbytes)) for start in range(0, nbytes, PIECE_BYTES))


def _overlap(start: int, stop: int, at: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """What a piece has of some bytes, if anything."""
    first, last = max(start, at), min(stop, at + nbytes)
    if first < last:
        yield first, last
