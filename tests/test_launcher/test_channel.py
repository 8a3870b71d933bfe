"""Frames between supervisor and runner: what proves the secret comes through, nothing else does."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.connections import channel
from launcher.connections.channel import Channel, ChannelError, Message, connect, serve

SECRET = b"s" * 32

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=50),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=10,
)
messages = st.lists(st.dictionaries(st.text(max_size=10), json_values, max_size=5), max_size=5)


def run(scenario: Callable[[], Awaitable[Any]]) -> Any:
    return asyncio.run(asyncio.wait_for(scenario(), 20))


async def echo(channel: Channel, hello: Message) -> None:
    channel.send({"welcome": hello})
    try:
        while True:
            channel.send(await channel.receive())
    except ChannelError:
        return


class Server:
    """An echo server that also notes what it accepted."""

    def __init__(self, accept: Callable[[Channel, Message], Awaitable[None]] = echo) -> None:
        self._accept = accept
        self.accepted: list[Message] = []

    async def __aenter__(self) -> Server:
        async def accept(channel: Channel, hello: Message) -> None:
            self.accepted.append(hello)
            await self._accept(channel, hello)

        self._server = await serve("127.0.0.1", SECRET, accept)
        self.port = self._server.port
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()


@settings(max_examples=25, deadline=None)
@given(messages)
def test_messages_arrive_whole_and_in_order(sent: list[Message]) -> None:
    async def scenario() -> None:
        async with Server() as server:
            client, welcome = await connect("127.0.0.1", server.port, SECRET, {"op": "hello"})
            assert welcome == {"welcome": {"op": "hello"}}
            for message in sent:
                client.send(message)
            assert [await client.receive() for _ in sent] == sent
            await client.close()

    run(scenario)


def test_client_with_a_wrong_secret_is_not_accepted() -> None:
    async def scenario() -> None:
        async with Server() as server:
            with pytest.raises(ChannelError):
                await connect("127.0.0.1", server.port, b"x" * 32, {"op": "hello"})
            assert server.accepted == []

    run(scenario)


def test_server_with_a_wrong_secret_is_not_believed() -> None:
    async def scenario() -> None:
        async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(bytes(16) + (2).to_bytes(4, "big") + bytes(32) + b"{}")

        server = await asyncio.start_server(lie, "127.0.0.1", 0)
        with pytest.raises(ChannelError, match="does not prove"):
            await connect("127.0.0.1", server.sockets[0].getsockname()[1], SECRET, {})
        server.close()

    run(scenario)


def test_nobody_listening_is_one_clear_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        free_port = closed.getsockname()[1]
    with pytest.raises(ChannelError, match=f"127.0.0.1:{free_port}: cannot connect"):
        run(lambda: connect("127.0.0.1", free_port, SECRET, {}))


def test_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()

        server = await asyncio.start_server(nothing, "127.0.0.1", 0)
        with pytest.raises(ChannelError, match=r"no answer within 0\.1 s"):
            await connect("127.0.0.1", server.sockets[0].getsockname()[1], SECRET, {})
        server.close()

    run(scenario)


def test_silent_client_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "HANDSHAKE_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        async with Server() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            await reader.readexactly(16)
            assert await _is_closed(reader)
            writer.close()

    run(scenario)


def test_replayed_connection_is_refused() -> None:
    """A recorded client, sent again byte for byte, meets another nonce."""

    async def scenario() -> None:
        async with Server() as server:
            nonce = bytes(16)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            recorded = nonce + _frame(_key(nonce, await reader.readexactly(16)), b"c", 0, {"op": "hello"})
            writer.write(recorded)
            await reader.readexactly(36)
            assert server.accepted == [{"op": "hello"}]
            again, writer_again = await asyncio.open_connection("127.0.0.1", server.port)
            writer_again.write(recorded)
            await again.readexactly(16)
            assert await _is_closed(again)
            assert len(server.accepted) == 1
            writer.close()
            writer_again.close()

    run(scenario)


@pytest.mark.parametrize(
    "wrong", ["replayed", "reflected", "skipped", "altered", "truncated", "oversize", "no_json", "no_object"]
)
def test_wrong_frame_closes_the_connection(wrong: str) -> None:
    async def scenario() -> None:
        async with Server() as server:
            nonce = bytes(16)
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(nonce)
            key = _key(nonce, await reader.readexactly(16))
            writer.write(_frame(key, b"c", 0, {"op": "hello"}))
            await reader.readexactly(36 + len(b'{"welcome":{"op":"hello"}}'))
            good = _frame(key, b"c", 1, {"a": 1})
            frames = {
                "replayed": _frame(key, b"c", 0, {"op": "hello"}),
                "reflected": _frame(key, b"s", 1, {"a": 1}),
                "skipped": _frame(key, b"c", 2, {"a": 1}),
                "altered": good[:-1] + b"]",
                "truncated": good[:-1],
                "oversize": (channel.MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big"),
                "no_json": _raw_frame(key, b"c", 1, b"{"),
                "no_object": _raw_frame(key, b"c", 1, b"[]"),
            }
            writer.write(frames[wrong])
            if wrong == "truncated":
                writer.write_eof()
            assert await _is_closed(reader)
            writer.close()

    run(scenario)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_never_accepted(garbage: bytes) -> None:
    async def scenario() -> None:
        async with Server() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(garbage)
            writer.write_eof()
            assert await _is_closed(reader)
            assert server.accepted == []
            writer.close()

    run(scenario)


def test_message_too_large_to_send_is_refused_here() -> None:
    async def scenario() -> None:
        async with Server() as server:
            with pytest.raises(ValueError, match="expected 32768 at most"):
                await connect("127.0.0.1", server.port, SECRET, {"text": "x" * channel.HELLO_BYTES})
            client, _ = await connect("127.0.0.1", server.port, SECRET, {})
            with pytest.raises(ValueError, match="expected 1048576 at most"):
                client.send({"text": "x" * channel.MAX_PAYLOAD_BYTES})
            client.send({"still": "there"})
            assert await client.receive() == {"still": "there"}
            await client.close()

    run(scenario)


def test_end_of_the_peer_is_noticed_at_once() -> None:
    async def leave(channel: Channel, hello: Message) -> None:
        channel.send({})

    async def scenario() -> None:
        async with Server(leave) as server:
            client, _ = await connect("127.0.0.1", server.port, SECRET, {})
            with pytest.raises(ChannelError, match="closed"):
                await client.receive()

    run(scenario)


async def _is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        while await reader.read(1000):
            pass
    except ConnectionError:
        pass
    return True


def _key(client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(SECRET, b"holdfast channel 1" + client_nonce + server_nonce, "sha256")


def _frame(key: bytes, direction: bytes, sequence: int, message: Message) -> bytes:
    return _raw_frame(key, direction, sequence, json.dumps(message).encode())


def _raw_frame(key: bytes, direction: bytes, sequence: int, payload: bytes) -> bytes:
    mac = hmac.digest(key, direction + sequence.to_bytes(8, "big") + payload, "sha256")
    return len(payload).to_bytes(4, "big") + mac + payload
