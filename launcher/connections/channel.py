"""Authenticated frames over TCP between the supervisor and its runners.

Handshake: each side sends a 16-byte nonce; the key of the connection is HMAC(job secret, both nonces), so it is new for
each connection. A frame is a 4-byte big-endian length, a 32-byte HMAC-SHA256 over (direction, sequence number, payload)
and the payload, a JSON object. The sequence number is not sent: a frame that is replayed, reordered, reflected or
altered fails its HMAC, and the connection closes. Nothing of a frame is read before its HMAC has been checked.

A peer that has not proved the secret is limited to HELLO_BYTES, HANDSHAKE_TIMEOUT_S and a number of connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.base.deadlines import within
from launcher.connections.handshake_limit import Handshakes
from launcher.connections.listener import ACCEPTS_A_TURN, Listener, listen
from launcher.errors import LauncherError

MAX_PAYLOAD_BYTES = 1 << 20
HELLO_BYTES = 1 << 15  # the first frame from either side, before it has proved anything
HANDSHAKE_TIMEOUT_S = 5.0
MAX_HALF_OPEN = 256

_NONCE_BYTES = 16
_MAC_BYTES = 32
_CLIENT, _SERVER = b"c", b"s"
_BACKLOG = 4096  # all runners of a large job connect at once; the kernel caps it at net.core.somaxconn
_REFUSALS_LOGGED_EVERY_S = 10.0  # any host can cause refusals, and they must not fill the log

_ENCODER = json.JSONEncoder(separators=(",", ":"))  # made once: json.dumps would make one for each frame

log = logging.getLogger(__name__)

Message = dict[str, Any]


class ChannelError(LauncherError):
    """The peer did not prove the job's secret, violated the protocol, or closed the connection. It is closed now."""


class Channel:
    """One end of an authenticated connection. Made by `connect` and `serve`."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, sends: bytes, receives: bytes
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._key = key
        self._sends, self._receives = sends, receives
        self._sent = self._received = 0
        self.peer_host: str = (writer.get_extra_info("peername") or ("unknown",))[0]

    async def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            ChannelError: the connection ended, or a frame is not the next frame of the peer.
        """
        try:
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            limit = MAX_PAYLOAD_BYTES if self._received else HELLO_BYTES
            if length > limit:
                raise ChannelError(f"{self.peer_host}: frame of {length} bytes, expected {limit} at most")
            mac = await self._reader.readexactly(_MAC_BYTES)
            payload = await self._reader.readexactly(length)
            if not hmac.compare_digest(mac, self._mac(self._receives, self._received, payload)):
                raise ChannelError(f"{self.peer_host}: frame {self._received} does not prove the job's secret")
            self._received += 1
            message = json.loads(payload)
            if not isinstance(message, dict):
                raise ChannelError(f"{self.peer_host}: frame holds {type(message).__name__}, expected an object")
        except ChannelError:
            self.abort()
            raise
        except (OSError, EOFError) as error:
            self.abort()
            raise ChannelError(f"{self.peer_host}: connection closed ({error or type(error).__name__})") from None
        except (ValueError, RecursionError):
            self.abort()
            raise ChannelError(f"{self.peer_host}: frame is not JSON that we read") from None
        return message

    def send(self, message: Message) -> None:
        """Queue a message for sending. Never blocks. If the peer has ended, `receive` raises the error.

        Raises:
            ValueError: the message as JSON is larger than MAX_PAYLOAD_BYTES; for the first message, HELLO_BYTES.
        """
        payload = _ENCODER.encode(message).encode()
        limit = MAX_PAYLOAD_BYTES if self._sent else HELLO_BYTES
        if len(payload) > limit:
            raise ValueError(f"message of {len(payload)} bytes, expected {limit} at most")
        if self._writer.is_closing():
            return
        mac = self._mac(self._sends, self._sent, payload)
        self._sent += 1
        self._writer.write(len(payload).to_bytes(4, "big") + mac + payload)

    async def close(self, timeout_s: float = 1.0) -> None:
        """Send the queued messages and close. Messages that are not sent within `timeout_s` are discarded."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await within(timeout_s, self._writer.drain())
            self._writer.close()
            await within(timeout_s, self._writer.wait_closed())
        self.abort()

    def abort(self) -> None:
        """Close at once and discard the queued messages."""
        self._writer.transport.abort()

    def _mac(self, direction: bytes, sequence: int, payload: bytes) -> bytes:
        return hmac.digest(self._key, direction + sequence.to_bytes(8, "big") + payload, "sha256")


async def connect(host: str, port: int, secret: bytes, hello: Message) -> tuple[Channel, Message]:
    """Connects as a client.

    Args:
        host, port: the server's address.
        secret: the job's secret.
        hello: the first message. Its HMAC proves that we know the secret.

    Returns:
        The channel, and the server's answer. Its HMAC proves that the server knows the secret.

    Raises:
        ChannelError: there is no server, it does not know the secret, or it did not answer in HANDSHAKE_TIMEOUT_S.
    """
    try:
        return await within(HANDSHAKE_TIMEOUT_S, _connect(host, port, secret, hello))
    except TimeoutError:
        raise ChannelError(f"{host}:{port}: no answer within {HANDSHAKE_TIMEOUT_S} s") from None
    except (OSError, EOFError) as error:
        raise ChannelError(f"{host}:{port}: cannot connect ({error or type(error).__name__})") from None


async def _connect(host: str, port: int, secret: bytes, hello: Message) -> tuple[Channel, Message]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        nonce = os.urandom(_NONCE_BYTES)
        writer.write(nonce)
        server_nonce = await reader.readexactly(_NONCE_BYTES)
        channel = Channel(reader, writer, _session_key(secret, nonce, server_nonce), _CLIENT, _SERVER)
        _send_at_once(writer)
        channel.send(hello)
        return channel, await channel.receive()
    except BaseException:
        writer.transport.abort()
        raise


async def serve(
    host: str,
    secret: bytes,
    accept: Callable[[Channel, Message], Awaitable[None]],
    port: int = 0,
    max_half_open: int = MAX_HALF_OPEN,
) -> Listener:
    """Listens for clients.

    Args:
        host: address to listen on.
        secret: the job's secret.
        accept: called with the channel and the first message of each client that proved the secret within
            HANDSHAKE_TIMEOUT_S. It must answer the first message. The connection is closed when it returns.
        port: 0: the system chooses.
        max_half_open: maximum number of connections that have not proved the secret yet; see `Handshakes`.
    """
    handshakes = Handshakes(max_half_open)
    refusals = _Refusals()
    greeted = 0  # number of connections in their handshake, including those that are being dropped

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal greeted
        peer = (writer.get_extra_info("peername") or ("unknown",))[0]
        number = handshakes.add(peer, writer.transport.abort)
        greeted += 1
        try:
            channel, hello = await within(HANDSHAKE_TIMEOUT_S, _greet(reader, writer, secret))
        except (TimeoutError, ChannelError, OSError, EOFError) as error:
            refusals.note(peer, str(error) or type(error).__name__)
            writer.transport.abort()
            return
        finally:
            greeted -= 1
            handshakes.remove(number)
        try:
            await accept(channel, hello)
        finally:
            await channel.close()

    def is_full(starting: int) -> bool:
        return handshakes.is_full or greeted + starting >= max_half_open + ACCEPTS_A_TURN

    return listen(host, port, handle, backlog=_BACKLOG, is_full=is_full, limit=HELLO_BYTES)


class _Refusals:
    """Logs refused connections: the first at once, and the number of further ones with a later line."""

    def __init__(self) -> None:
        self._logged_s: float | None = None
        self._unsaid = 0

    def note(self, peer: str, reason: str) -> None:
        now_s = time.monotonic()
        if self._logged_s is not None and now_s - self._logged_s < _REFUSALS_LOGGED_EVERY_S:
            self._unsaid += 1
            return
        others = f" ({self._unsaid} others since the last of these lines)" if self._unsaid else ""
        log.warning("connection from %s refused: %s%s", peer, reason, others)
        self._logged_s, self._unsaid = now_s, 0


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes) -> tuple[Channel, Message]:
    nonce = os.urandom(_NONCE_BYTES)
    writer.write(nonce)
    _send_at_once(writer)
    client_nonce = await reader.readexactly(_NONCE_BYTES)
    channel = Channel(reader, writer, _session_key(secret, client_nonce, nonce), _SERVER, _CLIENT)
    return channel, await channel.receive()


def _session_key(secret: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.new(secret, b"holdfast channel 1" + client_nonce + server_nonce, hashlib.sha256).digest()


def _send_at_once(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
