"""Python values come back exactly, or are refused by name."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, namedtuple
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.errors import CorruptError, StateError
from ckpt.record.files import dump_json
from ckpt.record.values import decode, encode

hashable = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False) | st.binary()
hashables = hashable | st.tuples(hashable, hashable)
values = st.recursive(
    hashables | st.floats(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(), inner)
        | st.dictionaries(hashables, inner)
        | st.sets(hashables)
    ),
    max_leaves=20,
)


def round_trip(value: Any) -> Any:
    return decode(json.loads(dump_json(encode(value))))


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@given(values)
def test_values_round_trip_exactly(value: Any) -> None:
    assert same(round_trip(value), value)


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.1),
        np.int64(-(2**63)),
        np.bool_(True),
        np.complex128(1 + 2j),
        np.float16("nan"),
        np.datetime64("2020-01-01"),
    ],
)
def test_numpy_scalars_round_trip(value: Any) -> None:
    back = round_trip(value)
    assert type(back) is type(value)
    assert back.tobytes() == value.tobytes()


def test_generator_states_round_trip() -> None:
    import random

    assert round_trip(random.getstate()) == random.getstate()
    generator = np.random.default_rng(3)
    assert round_trip(generator.bit_generator.state) == generator.bit_generator.state


def test_ordered_dicts_come_back_as_dicts_and_counters_as_counters() -> None:
    assert round_trip(OrderedDict(b=1, a=2)) == {"b": 1, "a": 2}
    back = round_trip(Counter({10: 2, 20: 1}))
    assert back == Counter({10: 2, 20: 1}) and type(back) is Counter


@pytest.mark.parametrize("key", ["#tuple", "#tensor", "#", "plain"])
def test_a_key_that_looks_like_a_tag_is_an_ordinary_key(key: str) -> None:
    assert round_trip({key: [1, 2]}) == {key: [1, 2]}
    assert round_trip({key: [1, 2], "b": 1}) == {key: [1, 2], "b": 1}


class Colour(IntEnum):
    RED = 1


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        Colour.RED,
        Pair(1, 2),
        defaultdict(int),
        1j,
        range(3),
        bytearray(b"x"),
        frozenset({1}),
        "\ud800",
        1 << 9000,
    ],
)
def test_what_cannot_be_stored_exactly_is_refused_by_path(value: Any) -> None:
    with pytest.raises(StateError, match=r"state\['a'\]\[0\]\['b'\]"):
        encode({"a": [{"b": value}]})


@pytest.mark.parametrize(
    "node",
    [
        {"#tuple": 5},
        {"#dict": [[1]]},
        {"#dict": [[[], 1]]},
        {"#bytes": "?"},
        {"#scalar": ["<f4", "AAAA"]},
        {"#scalar": ["O", "AAAAAAAAAAA="]},
        {"#scalar": []},
        {"#set": [[1]]},
        {"#counter": [1]},
        {"#nothing": 1},
    ],
)
def test_a_malformed_form_is_corrupt(node: Any) -> None:
    with pytest.raises(CorruptError):
        decode(node)
