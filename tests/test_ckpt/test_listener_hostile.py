"""The agent's socket against programs of its own user that speak nonsense: it answers others as if nothing had been."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from agent_kit import World, config
from agent_kit import layout as layout_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt.agent.rpc.framing import encode
from ckpt.agent.rpc.messages import WAYS
from ckpt.agent.rpc.peers import PeerError
from ckpt.agent.rpc.worker_socket import Client, WorkerSocket

WORDS = {op: (way.sender, way.receiver) for way in WAYS for op in way.messages}
OF_WORKERS = tuple(op for op, way in WORDS.items() if way == ("worker", "agent"))
OF_PEERS = (*(op for op, way in WORDS.items() if "leader" in way or "node" in way), "unheard of")

numbers = st.integers(-3, 3) | st.sampled_from([2**31, 2**63, -(2**63), 10**40, True, False, 0.5, 1e300])
scalars = st.none() | numbers | st.sampled_from(["", "1", "../../etc/passwd", "\x00", "x" * 5000])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abx"), inner, max_size=3),
    max_leaves=8,
)
NAMES = (
    "step", "rank", "slot", "blocks", "block", "path", "wants", "reason", "generation", "flush", "tokens", "id",
    "save", "over", "nbytes", "source", "tag", "tiers", "seconds", "replicas_differ", "boundary", "name",
)  # fmt: skip
fields = st.dictionaries(st.sampled_from(NAMES), values, max_size=8)
layouts = values | st.just(layout_of(5000).to_json())


def requests(*ops: str) -> st.SearchStrategy[dict[str, Any]]:
    """Messages that somebody who knows the words could send."""
    whole = st.fixed_dictionaries(
        {"op": st.sampled_from(ops) | values, "layout": layouts, "addend": values | st.just([0, 1, []])}
    )
    return st.builds(lambda known, more: more | known, whole, fields)


raw = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"\xff" * 8, b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x00", b"\x04\x00\x00\x01", encode({})]),
    fields.map(encode),
    st.builds(lambda role, rank: encode({"op": "hello", "role": role, "local_rank": rank}), values, values),
)


async def say(path: Path, *messages: bytes) -> None:
    """Sends these bytes and goes, without listening."""
    reader, writer = await asyncio.open_unix_connection(path)
    with contextlib.suppress(ConnectionError):
        writer.write(b"".join(messages))
        await writer.drain()
        writer.write_eof()
        while await reader.read(1 << 16):
            pass
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@settings(max_examples=settings.default.max_examples, deadline=None)
@given(st.lists(raw, max_size=6))
def test_nobody_is_served_before_a_hello_and_nonsense_closes_its_own_connection_alone(sent: list[bytes]) -> None:
    async def scenario() -> None:
        crashes: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: crashes.append(context))
        served: list[Client] = []

        async def serve(client: Client, message: dict[str, Any]) -> dict[str, Any]:
            served.append(client)
            return {"served": True}

        with tempfile.TemporaryDirectory() as folder:
            listener = WorkerSocket(Path(folder) / "agent.sock", serve)
            await listener.listen()
            await say(listener.path, *sent)
            assert all(client.role in ("worker", "monitor") for client in served)
            reader, writer = await asyncio.open_unix_connection(listener.path)
            hello = {"op": "hello", "role": "worker", "local_rank": 0}
            writer.write(encode(hello) + encode({"op": "plan", "id": 1}))
            answer = await reader.readexactly(len(encode({"re": 1, "served": True})))
            assert b'"served"' in answer
            writer.close()
            await listener.close()
        assert crashes == []

    asyncio.run(asyncio.wait_for(scenario(), 20))


@settings(max_examples=settings.default.max_examples // 2, deadline=None)
@given(st.lists(requests(*OF_WORKERS), max_size=8), st.lists(requests(*OF_PEERS), max_size=8))
def test_requests_with_wrong_fields_end_no_agent(
    of_workers: list[dict[str, Any]], of_peers: list[dict[str, Any]]
) -> None:
    """From a worker, and from the other node's agent, which is trusted but may be of another version."""

    async def scenario(root: Path) -> None:
        crashes: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: crashes.append(context))
        async with World(root, ["a", "b"], 0, config()) as world:
            hello = encode({"op": "hello", "role": "worker", "local_rank": 0})
            await say(world.places[0].socket_path, hello, *map(encode, of_workers))
            for message in of_peers:
                if type(message.get("id")) is int:
                    message["id"] += 10**6  # or its answer is taken for that to the call below
                world.fake.transports[1].send(0, encode(message)[4:])
            for monitor in world.monitors:
                monitor.send(op="ping")
                await monitor.event("pong")
            with pytest.raises(PeerError, match="unknown call"):
                await world.agents[1]._peers.call(0, "asked at last", timeout_s=10)
            assert not any(task.done() for task in world.tasks)
        assert crashes == []

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(asyncio.wait_for(scenario(Path(folder)), 30))
