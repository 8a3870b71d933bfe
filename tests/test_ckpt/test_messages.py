"""Frames on the agent's socket."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.agent.rpc import framing as messages
from ckpt.agent.rpc.framing import Decoder, decode, encode
from ckpt.errors import AgentError

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)
objects = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), values, max_size=5)


@given(st.lists(objects, max_size=4), st.lists(st.integers(1, 40), max_size=30))
def test_messages_arrive_whole_however_the_bytes_are_cut(sent, cuts):
    stream = b"".join(map(encode, sent))
    decoder, received, start = Decoder(), [], 0
    for length in [*cuts, len(stream)]:
        received += decoder.feed(stream[start : start + length])
        start += length
    assert received == sent


@given(objects)
def test_a_truncated_frame_yields_nothing(message):
    assert list(Decoder().feed(encode(message)[:-1])) == []


@given(st.binary(max_size=200))
def test_garbage_is_refused_or_waited_for_and_nothing_else(data):
    try:
        for message in Decoder().feed(data):
            assert isinstance(message, dict)
    except AgentError:
        pass


def test_an_announced_giant_is_refused_before_it_is_received():
    with pytest.raises(AgentError, match="expected at most"):
        list(Decoder().feed(struct.pack(">I", messages.MAX_FRAME_BYTES + 1)))


def test_an_oversize_message_is_not_sent(monkeypatch):
    monkeypatch.setattr(messages, "MAX_FRAME_BYTES", 100)
    assert encode({"x": "a" * 50})
    with pytest.raises(AgentError, match="keep bulk data in tensors"):
        encode({"x": "a" * 200})


@pytest.mark.parametrize("body", [b"[1]", b"3", b"null", b"", b"{", b'{"a":"\xff"}', b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(AgentError, match="message"):
        decode(body)
