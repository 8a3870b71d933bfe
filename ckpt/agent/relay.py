"""Sums of multiples of byte ranges on different nodes, made on their way along the ring of a redundancy set.

Whoever wants a sum tells all nodes of a chain at once from whom to receive and to whom to send; the bytes come down the
chain in pieces, each node adding its own. Every byte is read once, every link carries the sum's length once, and a
node's buffers are WINDOW pieces for each chain that it is in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ckpt.agent.exchange import save_to_json
from ckpt.agent.peers import Moving, PeerError, Peers
from ckpt.errors import AgentError
from ckpt.record.shard import SaveId
from ckpt.redundancy.galois import multiply_add

PIECE_BYTES = 512 << 10
WINDOW = 6  # pieces of one chain in a node's buffers: half arriving, half leaving

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
class Hop:
    """What one node adds to a sum: its parts, which do not overlap, times a coefficient."""

    node: int
    coefficient: int
    parts: tuple[Part, ...]

    def to_json(self) -> list[Any]:
        return [self.node, self.coefficient, [part.to_json() for part in self.parts]]

    @classmethod
    def from_json(cls, value: list[Any]) -> Hop:
        """Raises AgentError unless every field is a whole number."""
        node, coefficient, rows = value
        parts = tuple(
            Part(rank=rank, parity=bool(parity), start=start, nbytes=nbytes, at=at)
            for rank, parity, start, nbytes, at in rows
        )
        numbers = [node, coefficient, *(n for p in parts for n in (p.rank, p.start, p.nbytes, p.at))]
        if any(type(number) is not int or number < 0 for number in numbers) or coefficient > 255:
            raise AgentError(f"malformed hop {value!r:.200}")
        return cls(node=node, coefficient=coefficient, parts=parts)


Resolve = Callable[[dict[str, Any], Part], memoryview]  # the bytes of a part here; raises AgentError


class Relay:
    """One node's place in the chains of others, and its way to ask for one."""

    def __init__(self, peers: Peers, resolve: Resolve, timeout_s: float) -> None:
        self._peers = peers
        self._resolve = resolve
        self._timeout_s = timeout_s
        peers.handle("sum", self._serve)

    async def pull(self, save: SaveId, over: dict[str, Any], hops: Sequence[Hop], into: memoryview) -> None:
        """Fills `into` with the sum over the hops, the last of which is asked; not verified.

        Args:
            save: of which save the parts are.
            over: the ParitySet as JSON, for parts that are parity.
            hops: at least one; the nodes that the sum comes along.
            into: not empty.

        Raises:
            PeerError: a node of the chain refused, or nothing arrived in time; names the chain. Bytes may yet arrive:
                do not reuse the buffer.
        """
        tags = [self._peers.new_tag() for _ in hops]
        pieces = (into[start:stop] for start, stop in _pieces(len(into)))
        fields = {"save": save_to_json(save), "over": over, "nbytes": len(into)}
        source = [None, *((hop.node, tag) for hop, tag in zip(hops, tags, strict=True))]
        target = [*(hop.node for hop in hops[1:]), self._peers.rank]
        calls = [
            self._peers.call(
                hop.node, "sum", timeout_s=self._timeout_s, hop=hop.to_json(), source=source[i], target=target[i],
                tag=tags[i], **fields,
            )
            for i, hop in enumerate(hops)
        ]  # fmt: skip
        receiving = asyncio.ensure_future(self._peers.take(hops[-1].node, tags[-1], pieces))
        try:
            answers = await asyncio.gather(*calls, return_exceptions=True)
            if refused := [str(answer) for answer in answers if isinstance(answer, BaseException)]:
                raise PeerError("; ".join(refused))
            await receiving
        except PeerError as error:
            names = " -> ".join(self._peers.nodes[hop.node] for hop in hops)
            raise PeerError(f"sum along {names}: {error}") from None
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _serve(self, source: int, message: dict[str, Any]) -> None:
        """Answers at once; what fails later shows at the other end of the chain, where nothing more arrives."""
        hop, nbytes = Hop.from_json(message["hop"]), message["nbytes"]
        own = [(part.at, self._own(message, part, nbytes)) for part in hop.parts]
        to, tag = message["target"], message["tag"]
        if message["source"] is None:
            work = self._begin(to, tag, nbytes, hop.coefficient, own)
        else:
            source_node, source_tag = message["source"]
            work = self._pass_on(source_node, source_tag, to, tag, nbytes, hop.coefficient, own)
        self._peers.spawn(self._run(to, work))

    def _own(self, message: dict[str, Any], part: Part, nbytes: int) -> memoryview:
        data = self._resolve(message, part)
        if part.start + part.nbytes > len(data) or part.at + part.nbytes > nbytes:
            raise AgentError(f"{part.nbytes} bytes from {part.start} of {len(data)} asked for")
        return data[part.start : part.start + part.nbytes]

    async def _begin(self, to: int, tag: int, nbytes: int, coefficient: int, own: list[tuple[int, memoryview]]) -> None:
        """The first node of a chain: its own bytes, as they lie in memory where that can be."""
        sending: deque[tuple[bytearray, Moving]] = deque()
        whole = coefficient == 1 and len(own) == 1 and len(own[0][1]) == nbytes
        for start, stop in _pieces(nbytes):
            buffer = bytearray()
            if len(sending) == WINDOW:
                buffer, moving = sending.popleft()
                await self._peers.moved(to, moving)
            if whole:
                piece = own[0][1][start:stop]
            else:
                buffer = buffer or bytearray(PIECE_BYTES)
                piece = memoryview(buffer)[: stop - start]
                piece[:] = bytes(len(piece))
                _add(piece, start, coefficient, own)
            sending.append((buffer, self._peers.send(to, tag, piece)))
        for _, moving in sending:
            await self._peers.moved(to, moving)

    async def _pass_on(
        self, source: int, source_tag: int, to: int, tag: int, nbytes: int, coefficient: int,
        own: list[tuple[int, memoryview]],
    ) -> None:  # fmt: skip
        """Every later node: what arrives, with its own bytes added."""
        arriving: deque[tuple[int, memoryview, Moving]] = deque()
        leaving: deque[tuple[memoryview, Moving]] = deque()
        ahead = _pieces(nbytes)

        def expect(buffer: memoryview) -> None:
            if (piece := next(ahead, None)) is not None:
                start, stop = piece
                arriving.append((start, buffer, self._peers.receive(source, source_tag, buffer[: stop - start])))

        for _ in range(min(WINDOW, -(-nbytes // PIECE_BYTES))):
            expect(memoryview(bytearray(PIECE_BYTES)))
        try:
            while arriving:
                start, buffer, moving = arriving[0]
                await self._peers.moved(source, moving)
                arriving.popleft()
                piece = buffer[: min(PIECE_BYTES, nbytes - start)]
                _add(piece, start, coefficient, own)
                leaving.append((buffer, self._peers.send(to, tag, piece)))
                if len(leaving) > WINDOW // 2 or not arriving:
                    buffer, moving = leaving.popleft()
                    await self._peers.moved(to, moving)
                    expect(buffer)
            for _, moving in leaving:
                await self._peers.moved(to, moving)
        finally:
            for _, _, moving in arriving:
                moving[0].cancel()

    async def _run(self, to: int, work: Any) -> None:
        try:
            await work
        except AgentError as error:
            log.warning("a sum for node %s: %s", self._peers.nodes[to], error)


def _pieces(nbytes: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + PIECE_BYTES, nbytes)) for start in range(0, nbytes, PIECE_BYTES))


def _add(piece: memoryview, start: int, coefficient: int, own: list[tuple[int, memoryview]]) -> None:
    """Adds what lies in [start, start + len(piece)) of the sum."""
    for at, data in own:
        first, last = max(start, at), min(start + len(piece), at + len(data))
        if first < last:
            multiply_add(piece[first - start : last - start], data[first - at : last - at], coefficient)
