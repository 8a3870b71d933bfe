"""The supervisor's door against whoever can reach its port: no crash, bounded memory and time, no crowding out."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.connections import channel
from launcher.connections.channel import Channel, ChannelError, Message, connect, serve
from launcher.connections.handshake_limit import Handshakes, host_of
from launcher.connections.listener import ACCEPTS_A_TURN

SECRET = b"s" * 32


class Door:
    """A server on a loop of its own that notes whom it let in and what went wrong behind asyncio's back."""

    def __init__(self, **options: Any) -> None:
        self.accepted: list[Message] = []
        self.crashes: list[dict[str, Any]] = []
        self._options = options

    async def open(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.crashes.append(context))
        self._server = await serve("127.0.0.1", SECRET, self._accept, **self._options)
        self.port = self._server.port

    def close(self) -> None:
        self._server.close()

    async def _accept(self, channel: Channel, hello: Message) -> None:
        self.accepted.append(hello)
        channel.send({"welcome": True})
        with contextlib.suppress(ChannelError):
            while True:
                channel.send(await channel.receive())

    @contextlib.asynccontextmanager
    async def stranger(self, host: str = "127.0.0.1") -> AsyncIterator[tuple[asyncio.StreamReader, Any]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(host, 0))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def serves(self) -> bool:
        """Whether somebody who knows the secret is let in and heard."""
        client, _ = await connect("127.0.0.1", self.port, SECRET, {"op": "hello"})
        client.send({"echo": 1})
        heard = await client.receive()
        await client.close()
        return heard == {"echo": 1}


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def frame(key: bytes, payload: bytes, sequence: int = 0, direction: bytes = b"c", length: int | None = None) -> bytes:
    mac = hmac.digest(key, direction + sequence.to_bytes(8, "big") + payload, "sha256")
    return (len(payload) if length is None else length).to_bytes(4, "big") + mac + payload


def session_key(client_nonce: bytes, server_nonce: bytes, secret: bytes = SECRET) -> bytes:
    return hmac.digest(secret, b"holdfast channel 1" + client_nonce + server_nonce, "sha256")


payloads = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([b"{}", b"[]", b"null", b"{", b'"\\ud800"', b"1e999", b"1" * 5000, b"[" * 20000, b"\xff\xfe{}"]),
    st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3).map(
        lambda message: json.dumps(message).encode()
    ),
)
frames = st.fixed_dictionaries(
    {
        "payload": payloads,
        "sequence": st.integers(0, 3),
        "direction": st.sampled_from([b"c", b"s", b"x"]),
        "length": st.none() | st.integers(0, 2**32 - 1),
    }
)


@settings(max_examples=150, deadline=None)
@given(
    knows_secret=st.booleans(),
    sent=st.lists(frames, max_size=4),
    tail=st.binary(max_size=100),
    cut=st.none() | st.integers(0, 200),
    pieces=st.integers(1, 4),
)
def test_hostile_bytes_never_crash_the_server_and_only_the_secret_lets_in(
    knows_secret: bool, sent: list[dict[str, Any]], tail: bytes, cut: int | None, pieces: int
) -> None:
    """Frames of every kind, whole, cut and in pieces, from a peer that knows the secret and from one that does not."""

    async def scenario() -> None:
        door = Door()
        await door.open()
        async with door.stranger() as (reader, writer):
            nonce = b"n" * 16
            server_nonce = await reader.readexactly(16)
            key = session_key(nonce, server_nonce, SECRET if knows_secret else b"x" * 32)
            data = (nonce + b"".join(frame(key, **fields) for fields in sent) + tail)[:cut]
            for start in range(0, len(data), len(data) // pieces + 1):
                writer.write(data[start : start + len(data) // pieces + 1])
                with contextlib.suppress(ConnectionError):
                    await writer.drain()
            with contextlib.suppress(OSError):
                writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()  # the server closes by itself
        first = sent[0] if sent else None
        authentic = (
            knows_secret
            and first is not None
            and (cut is None or cut >= 16 + 36 + len(first["payload"]))
            and (first["sequence"], first["direction"]) == (0, b"c")
            and first["length"] in (None, len(first["payload"]))
        )
        assert not door.accepted or authentic
        assert await door.serves()
        assert door.crashes == []
        door.close()

    asyncio.run(asyncio.wait_for(scenario(), 20))


@pytest.mark.parametrize("length", [channel.HELLO_BYTES + 1, channel.MAX_PAYLOAD_BYTES, 2**32 - 1])
def test_a_stranger_is_refused_by_the_length_it_announces(length: int, loop: asyncio.AbstractEventLoop) -> None:
    """Nothing of the frame has to be kept, nor waited for."""

    async def scenario() -> None:
        door = Door()
        await door.open()
        async with door.stranger() as (reader, writer):
            await reader.readexactly(16)
            writer.write(bytes(16) + length.to_bytes(4, "big"))
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        door.close()

    loop.run_until_complete(asyncio.wait_for(scenario(), channel.HANDSHAKE_TIMEOUT_S - 1))


def test_many_silent_connections_keep_nobody_out(loop: asyncio.AbstractEventLoop) -> None:
    """More than the server keeps: the silent host's own go, the runner's handshake does not."""
    limit, silent = 8, 100

    async def scenario() -> None:
        door = Door(max_half_open=limit)
        await door.open()
        async with contextlib.AsyncExitStack() as stack:
            strangers = [await stack.enter_async_context(door.stranger("127.0.0.9")) for _ in range(silent)]
            assert await door.serves()
            closed = [asyncio.create_task(_closed(reader)) for reader, _ in strangers]
            while sum(task.done() for task in closed) < silent - limit:
                await asyncio.wait([task for task in closed if not task.done()], return_when="FIRST_COMPLETED")
            assert not any(task.done() for task in closed[-limit + 1 :])  # the newest stay
            assert await door.serves()
            for task in closed:
                task.cancel()
        assert door.crashes == []
        door.close()

    loop.run_until_complete(asyncio.wait_for(scenario(), channel.HANDSHAKE_TIMEOUT_S - 1))


def test_a_runner_is_heard_while_a_flood_waits_at_the_door(loop: asyncio.AbstractEventLoop) -> None:
    """Of a backlog that came in one turn of the loop only a few connections are accepted before it is answered, and
    never more than the server keeps."""
    limit, flood = 32, 400

    async def scenario() -> None:
        door = Door(max_half_open=limit)
        await door.open()
        client, _ = await connect("127.0.0.1", door.port, SECRET, {"op": "hello"})
        with contextlib.ExitStack() as stack:
            for _ in range(flood):  # in one turn: the kernel takes them
                address = ("127.0.0.1", door.port)
                stack.enter_context(socket.create_connection(address, source_address=("127.0.0.9", 0)))
            before, most = _descriptors(), 0
            for count in range(flood):
                client.send({"beat": count})
                assert await client.receive() == {"beat": count}
                most = max(most, _descriptors() - before)
                if count == 0:
                    assert most <= 10 * ACCEPTS_A_TURN
            assert ACCEPTS_A_TURN < most <= limit + 2 * ACCEPTS_A_TURN
            assert await door.serves()
        await client.close()
        assert door.crashes == []
        door.close()

    loop.run_until_complete(asyncio.wait_for(scenario(), 30))


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_where_hosts_are_many_each_connection_has_the_time_for_a_handshake_and_no_more() -> None:
    """They may all be runners: none is dropped at once, the next waits in the kernel. Silent ones keep nobody out."""
    now_s, dropped = 0.0, []
    handshakes = Handshakes(8, lambda: now_s)
    for index in range(8):
        handshakes.add(f"10.9.0.{index}", lambda index=index: dropped.append(index))
    assert handshakes.is_full
    now_s = 1.0
    assert not handshakes.is_full
    handshakes.add("10.9.1.1", lambda: dropped.append("new"))
    assert dropped == [0] and len(handshakes) == 8
    assert not handshakes.is_full  # the others are as old
    now_s, rest = 1.5, Handshakes(8, lambda: now_s)
    numbers = [rest.add(f"10.9.0.{index}", lambda: pytest.fail("dropped")) for index in range(8)]
    assert rest.is_full
    rest.remove(numbers[0])
    assert not rest.is_full
    crowded = Handshakes(8)
    for _ in range(20):
        crowded.add("10.9.0.1", lambda: None)
    assert not crowded.is_full and len(crowded) == 8


def test_all_addresses_of_this_machine_count_as_one_host() -> None:
    """Any user may connect from each address of 127.0.0.0/8, or from the machine's own address on a network."""
    own = {host_of(address) for address in ("127.0.0.1", "127.44.3.2", "::1", "::ffff:127.0.0.9")}
    assert len(own) == 1
    # A machine without a network has no other address.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        assert {host_of(probe.getsockname()[0])} == own
    assert host_of("192.0.2.7") == "192.0.2.7"
    assert host_of("2001:db8::1") == host_of("2001:db8::ffff") != host_of("2001:db8:0:1::1")


def test_a_flood_from_many_loopback_addresses_keeps_no_runner_out(loop: asyncio.AbstractEventLoop) -> None:
    """Three silent connections from each of 300 addresses, as one user of the supervisor's node can open them."""

    async def scenario() -> None:
        door = Door()
        await door.open()
        with contextlib.ExitStack() as stack:
            for index in range(900):
                source = (f"127.1.{index // 3 // 250}.{index // 3 % 250 + 1}", 0)
                stack.enter_context(socket.create_connection(("127.0.0.1", door.port), source_address=source))
            for _ in range(3):
                assert await door.serves()
        assert door.crashes == []
        door.close()

    loop.run_until_complete(asyncio.wait_for(scenario(), channel.HANDSHAKE_TIMEOUT_S - 1))


def test_refused_strangers_do_not_fill_the_log(
    loop: asyncio.AbstractEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        door = Door()
        await door.open()
        for _ in range(30):
            async with door.stranger() as (reader, writer):
                writer.write(bytes(16) + b"\xff" * 4)
                await _closed(reader)
        assert await door.serves()
        door.close()

    with caplog.at_level(logging.WARNING, logger="launcher.connections.channel"):
        loop.run_until_complete(asyncio.wait_for(scenario(), 20))
    assert [record.getMessage()[:36] for record in caplog.records] == ["connection from 127.0.0.1 refused: 1"]


def test_a_deeply_nested_message_is_no_json_that_we_read(loop: asyncio.AbstractEventLoop) -> None:
    """Python's reader recurses: what it refuses must end the connection, not the supervisor."""

    async def scenario() -> None:
        door = Door()
        await door.open()
        async with door.stranger() as (reader, writer):
            key = session_key(bytes(16), await reader.readexactly(16))
            writer.write(bytes(16) + frame(key, b"{}") + frame(key, b"[" * 200_000, sequence=1))
            await _closed(reader)
        assert await door.serves()
        assert door.crashes == []
        door.close()

    loop.run_until_complete(asyncio.wait_for(scenario(), 20))


def test_half_open_drops_the_oldest_of_the_host_that_has_most() -> None:
    dropped: list[str] = []
    handshakes = Handshakes(3)
    handshakes.add("192.0.2.1", lambda: dropped.append("runner"))
    numbers = [handshakes.add("192.0.2.2", lambda each=each: dropped.append(f"crowd {each}")) for each in range(4)]
    assert dropped == ["crowd 0", "crowd 1"] and len(handshakes) == 3
    handshakes.remove(numbers[0])  # dropped before: nothing happens
    handshakes.remove(numbers[2])
    assert len(handshakes) == 2
    handshakes.add("192.0.2.3", lambda: dropped.append("other"))
    assert dropped == ["crowd 0", "crowd 1"] and len(handshakes) == 3


async def _closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1000):
            pass
