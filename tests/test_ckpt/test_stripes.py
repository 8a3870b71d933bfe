"""Stripes: every loss within the promise comes back byte by byte, every loss beyond it is refused by name."""

from __future__ import annotations

import random
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.redundancy.gf256 import multiply_add
from ckpt.redundancy.stripes import LossError, Stripes, extents


def add_up(part, streams, parities):
    into = bytearray(part.nbytes)
    for term in part.terms:
        source = (parities if term.parity else streams)[term.member]
        assert source is not None and term.start + term.nbytes <= len(source)
        data = memoryview(source)[term.start : term.start + term.nbytes]
        multiply_add([memoryview(into)[: term.nbytes]], data, [term.coefficient])
    return into


def parity_of(stripes, member, streams):
    made = bytearray(stripes.parity_bytes(member))
    for row in range(stripes.parity):
        part = stripes.encode(member, row)
        made[part.at : part.at + part.nbytes] = add_up(part, streams, None)
    return made


def rebuilt(stripes, member, start, stop, streams, parities):
    data = {i for i, stream in enumerate(streams) if stream is not None}
    parity = {i for i, stream in enumerate(parities) if stream is not None}
    made = bytearray(b"\xee" * (stop - start))  # a reused slot: nothing may be left of it
    for part in stripes.rebuild(member, start, stop, data, parity):
        made[part.at : part.at + part.nbytes] = add_up(part, streams, parities)
    return made


def make(lengths, parity):
    noise = random.Random(str(lengths))
    streams = [noise.randbytes(length) for length in lengths]
    stripes = Stripes(lengths, parity)
    return stripes, streams, [parity_of(stripes, i, streams) for i in range(len(lengths))]


def without(values, lost):
    return [None if i in lost else value for i, value in enumerate(values)]


def every_loss(size):
    return chain.from_iterable(combinations(range(size), count) for count in range(1, size + 1))


@pytest.mark.parametrize(("size", "parity"), [(n, m) for n in range(2, 7) for m in range(1, n)])
def test_every_loss_of_nodes_within_the_promise_comes_back_and_every_one_beyond_is_refused(size, parity):
    lengths = [1000 - 37 * i for i in range(size)]
    stripes, streams, parities = make(lengths, parity)
    for lost in every_loss(size):
        left, left_parity = without(streams, lost), without(parities, lost)
        for member in lost:
            if len(lost) <= parity:
                assert rebuilt(stripes, member, 0, lengths[member], left, left_parity) == streams[member]
            else:
                with pytest.raises(LossError, match=r"members .* are lost, . of . parity blocks are left"):
                    rebuilt(stripes, member, 0, lengths[member], left, left_parity)


@pytest.mark.parametrize("parity", [1, 2])
def test_shards_and_parity_lost_on_different_nodes_come_back_wherever_each_stripe_has_enough(parity):
    size = 4
    stripes, streams, parities = make([640] * size, parity)
    for lost in every_loss(size):
        for lost_parity in chain([()], every_loss(size)):
            left, left_parity = without(streams, lost), without(parities, lost_parity)
            for member in lost:
                enough = all(
                    sum((s + parity + d) % size in lost for d in range(size - parity))
                    + sum((s + row) % size in lost_parity for row in range(parity))
                    <= parity
                    for s in range(size)
                    if not any((s + row) % size == member for row in range(parity))
                )
                if enough:
                    assert rebuilt(stripes, member, 0, 640, left, left_parity) == streams[member]
                else:
                    with pytest.raises(LossError):
                        rebuilt(stripes, member, 0, 640, left, left_parity)


@given(st.data())
def test_any_lengths_and_any_range(data):
    size = data.draw(st.integers(2, 7))
    parity = data.draw(st.integers(1, size - 1))
    lengths = data.draw(st.lists(st.integers(0, 700), min_size=size, max_size=size))
    stripes, streams, parities = make(lengths, parity)
    lost = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=parity, unique=True))
    member = lost[0]
    start = data.draw(st.integers(0, lengths[member]))
    stop = data.draw(st.integers(start, lengths[member]))
    made = rebuilt(stripes, member, start, stop, without(streams, lost), without(parities, lost))
    assert made == streams[member][start:stop]


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=8), st.data())
def test_parity_is_no_longer_than_it_must_be_and_every_byte_is_read_once_for_each_row(lengths, data):
    parity = data.draw(st.integers(1, len(lengths) - 1))
    stripes = Stripes(lengths, parity)
    segment = -(-max(lengths) // (len(lengths) - parity))
    for row in range(parity):
        read = [0] * len(lengths)
        for member in range(len(lengths)):
            assert stripes.parity_bytes(member) <= parity * (segment + 64)
            for term in stripes.encode(member, row).terms:
                assert term.member != member
                read[term.member] += term.nbytes
        assert read == lengths


@given(st.lists(st.integers(0, 5000), min_size=2, max_size=8), st.data())
def test_all_rows_of_a_stripe_are_made_of_the_same_bytes(lengths, data):
    parity = data.draw(st.integers(1, len(lengths) - 1))
    stripes = Stripes(lengths, parity)
    for stripe in range(len(lengths)):
        rows = [stripes.encode((stripe + row) % len(lengths), row) for row in range(parity)]
        assert len({(part.nbytes, frozenset((t.member, t.start, t.nbytes) for t in part.terms)) for part in rows}) == 1


@given(st.lists(st.integers(0, 50), max_size=6), st.integers(0, 100), st.integers(0, 100))
def test_a_range_of_a_stream_is_found_in_its_shards(lengths, start, nbytes):
    shards = [bytes((i * 60 + j) % 256 for j in range(length)) for i, length in enumerate(lengths)]
    stream = b"".join(shards)
    found = bytearray(len(stream[start : start + nbytes]))
    for index, first, count, at in extents(lengths, start, nbytes):
        found[at : at + count] = shards[index][first : first + count]
    assert bytes(found) == stream[start : start + nbytes]
