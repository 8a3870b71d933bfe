"""Frames on the agent's Unix socket: 4 bytes of length, big-endian, then one JSON object in UTF-8."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from ckpt.errors import AgentError
from ckpt.format.atomic_files import dump_json

MAX_FRAME_BYTES = 64 << 20
_LENGTH = struct.Struct(">I")


def encode(message: dict[str, Any]) -> bytes:
    """Encodes a message as one frame.

    Raises:
        AgentError: the message is longer than a frame may be.
    """
    body = dump_json(message)
    if len(body) > MAX_FRAME_BYTES:
        raise AgentError(
            f"message: {len(body)} bytes of JSON, expected at most {MAX_FRAME_BYTES}; "
            "the state holds too many or too large Python values, keep bulk data in tensors"
        )
    return _LENGTH.pack(len(body)) + body


def decode(body: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The JSON object in a frame's body. Raises AgentError for anything else."""
    try:
        message = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise AgentError(f"message: not JSON in UTF-8: {error}") from None
    if not isinstance(message, dict):
        raise AgentError(f"message: got a JSON {type(message).__name__}, expected an object")
    return message


class Decoder:
    """Splits a byte stream into messages, in whatever pieces the bytes arrive."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Adds bytes, and yields the messages that they complete.

        Raises:
            AgentError: a frame is too long or is not a JSON object; then close the stream.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (nbytes,) = _LENGTH.unpack_from(self._buffer)
            if nbytes > MAX_FRAME_BYTES:
                raise AgentError(f"message: {nbytes} bytes announced, expected at most {MAX_FRAME_BYTES}")
            end = _LENGTH.size + nbytes
            if len(self._buffer) < end:
                return
            body = self._buffer[_LENGTH.size : end]
            del self._buffer[:end]
            yield decode(body)
