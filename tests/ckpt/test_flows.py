"""Flows of bytes: how far they run ahead, what they leave behind when they are cut short, who has a turn meanwhile."""

from __future__ import annotations

import asyncio

import pytest
from agent_kit import FakeWorld, run, until

from ckpt.agent import flows
from ckpt.agent.peers import PeerError, Peers
from ckpt.transport import TransportError

PIECE = 1000


class Wire(FakeWorld):
    """Two agents' peers, polled by their own loops; what each has asked of its transport is seen."""

    async def __aenter__(self):
        self.peers = [Peers(transport, ("a", "b")) for transport in self.transports]
        self.polling = [asyncio.ensure_future(peers.run()) for peers in self.peers]
        return self

    async def __aexit__(self, *_):
        for task in self.polling:
            task.cancel()
        await asyncio.gather(*self.polling, return_exceptions=True)

    def announced(self, tag):
        return len(self.ranges[0, 1, tag][0])

    def asked_for(self, tag):
        return [transfer for transfer in self.ranges[0, 1, tag][1] if not transfer.complete]


def pieces(data):
    return [memoryview(data)[start : start + PIECE] for start in range(0, len(data), PIECE)]


def test_pieces_are_told_of_in_order_and_are_there_when_told():
    data, seen = bytes(i % 251 for i in range(300 * PIECE - 7)), []
    into = bytearray(len(data))

    def landed(start, nbytes):
        assert into[start : start + nbytes] == data[start : start + nbytes]
        seen.append((start, nbytes))

    async def test():
        async with Wire(2) as wire:
            wire.peers[0].push(1, 5, pieces(data))
            await wire.peers[1].take(0, 5, pieces(into), landed)
            assert into == data
            assert seen == [(start, min(PIECE, len(data) - start)) for start in range(0, len(data), PIECE)]

    run(test)


def test_a_sender_announces_so_many_pieces_and_a_receiver_asks_for_so_many():
    """Neither has its other end."""

    async def test():
        async with Wire(2) as wire:
            wire.peers[0].push(1, 5, pieces(bytes(1000 * PIECE)))
            asking = asyncio.ensure_future(wire.peers[1].take(0, 6, pieces(bytearray(1000 * PIECE))))
            await until(lambda: wire.announced(5) and wire.asked_for(6))
            assert (wire.announced(5), len(wire.asked_for(6))) == (flows.LEAVING, flows.ARRIVING)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert not wire.asked_for(6)  # MPI has been told that nobody waits for them

    run(test)


def test_a_long_flow_leaves_the_event_loop_its_turns():
    """All pieces wait to be taken, and yet a call is answered before the last one is."""

    async def test():
        async with Wire(2) as wire:
            data, into, landed = bytes(20_000 * PIECE), bytearray(20_000 * PIECE), []
            for piece in pieces(data):
                wire.transports[0].send_range(1, 5, piece)
            taking = asyncio.ensure_future(
                wire.peers[1].take(0, 5, pieces(into), lambda start, nbytes: landed.append(start))
            )
            await until(lambda: landed)
            with pytest.raises(PeerError, match="unknown call"):
                await wire.peers[1].call(0, "nothing", timeout_s=5)
            assert len(landed) < 20_000
            await taking

    run(test)


def test_the_end_of_the_world_ends_every_flow():
    async def test():
        async with Wire(2) as wire:
            taking = asyncio.ensure_future(wire.peers[1].take(0, 5, pieces(bytearray(9 * PIECE))))
            await until(lambda: wire.asked_for(5))
            wire.transports[1].fail = "gone"
            with pytest.raises(TransportError, match="gone"):
                await taking
            with pytest.raises(TransportError, match="gone"):
                await wire.peers[1].take(0, 6, pieces(bytearray(PIECE)))

    run(test)
