"""How bytes that are under way are waited for."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from agent_kit import FakeWorld

from ckpt.agent.rpc import peers
from ckpt.agent.rpc.peers import PeerError, Peers
from ckpt.agent.tasks import Tasks
from ckpt.timeouts import AgentDeadlines

COUNT = 100
TAG = 7


async def to_itself() -> None:
    """A node sends itself more ranges than are under way at once. Nobody polls its transport."""
    node = Peers(FakeWorld(1).transports[0], ["a"], AgentDeadlines())
    for index in range(COUNT):
        node.send(0, TAG, memoryview(bytes([index])))
    into = [memoryview(bytearray(1)) for _ in range(COUNT)]
    await asyncio.wait_for(node.take(0, TAG, into), 10)
    assert [piece[0] for piece in into] == list(range(COUNT))


def test_bytes_that_have_come_are_found_without_the_poll_of_the_event_loop() -> None:
    asyncio.run(to_itself())


def test_an_answer_that_is_too_long_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_MESSAGE_BYTES", 500)

    async def long(source: int) -> dict[str, str]:
        return {"shards": "x" * 500}

    async def short(source: int, boundary: int) -> None:
        return

    async def test() -> None:
        here, there = (Peers(transport, ["a", "b"], AgentDeadlines()) for transport in FakeWorld(2).transports)
        there._handlers["inventory"] = long
        there._handlers["stop_at"] = short
        async with Tasks() as tasks:
            for node in (here, there):
                tasks.start(node.run())
            with pytest.raises(PeerError, match=r"node b: inventory: message to node a: .* expected at most 500"):
                await here.call(1, "inventory")
            with pytest.raises(PeerError, match=r"message to node b: .* expected at most 500"):
                await here.call(1, "stop_at", boundary="x" * 500)
            await here.call(1, "stop_at", boundary=7)
        assert here.broken is None and there.broken is None

    asyncio.run(test())


def test_every_tag_of_the_transport_is_used_before_one_is_used_again() -> None:
    """However many nodes there are, and whatever else is counted."""

    async def test() -> None:
        transport = FakeWorld(1000).transports[999]
        node = Peers(transport, [f"n{rank}" for rank in range(1000)], AgentDeadlines())
        tags = [node.new_tag() for _ in range(transport.max_tag)]
        assert (min(tags), max(tags), len(set(tags))) == (1, transport.max_tag, len(tags))
        assert node.new_tag() == tags[0]

    asyncio.run(test())


def test_others_have_their_turn_while_bytes_come_without_a_pause() -> None:
    async def test() -> None:
        turns = itertools.count()

        async def other() -> None:
            while True:
                next(turns)
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        await to_itself()
        task.cancel()
        assert next(turns) >= COUNT // peers.TURN

    asyncio.run(test())
