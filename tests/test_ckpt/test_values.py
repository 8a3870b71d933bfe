"""Python values come back exactly, or are refused by name."""

from __future__ import annotations

import io
import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum, Flag, IntEnum, auto
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpt.errors import CorruptError, StateError
from ckpt.format.atomic_files import dump_json
from ckpt.format.json_values import decode, encode

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


class Mode(Flag):
    READ = auto()
    WRITE = auto()


class Pair(NamedTuple):
    a: Any
    b: Any = None

    class Kind(Enum):
        OLD = "old"


EAST = timezone(timedelta(hours=5, minutes=30, microseconds=1), "east")


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Mode.READ | Mode.WRITE,
        Pair.Kind.OLD,
        Pair(1, Pair({"x": Colour.RED})),
        deque([1, (2,)], maxlen=3),
        defaultdict(list, {"a": [1], 2: []}),
        defaultdict(None, {}),
        {frozenset({1, (2, 3)}): frozenset()},
        complex(-0.0, math.inf),
        bytearray(b"x\0"),
        range(9, -3, -2),
        Path("a/../b"),
        PureWindowsPath("c:/x"),
        datetime(2026, 11, 1, 1, 30, 0, 7, tzinfo=ZoneInfo("America/New_York"), fold=1),
        datetime.min,
        date(2026, 2, 28),
        time(1, 2, 3, 4, tzinfo=EAST),
        timedelta(days=-3, microseconds=5),
        EAST,
        ZoneInfo("UTC"),
        torch.Size([2, 0]),
        torch.bfloat16,
        torch.device("cuda", 3),
    ],
    ids=repr,
)
def test_a_value_of_a_known_kind_comes_back_exactly(value: Any) -> None:
    back = round_trip(value)
    assert type(back) is type(value) and back == value and repr(back) == repr(value)


def test_a_file_in_memory_comes_back_where_it_stood() -> None:
    file = io.BytesIO(b"abcdef")
    file.seek(2)
    back = round_trip(file)
    assert back.read() == b"cdef" and back.getvalue() == b"abcdef"


def test_a_subclass_of_str_comes_back_as_a_str() -> None:
    assert type(torch.__version__) is not str
    back = round_trip({"torch": torch.__version__, "numpy": np.str_("x")})
    assert back == {"torch": str(torch.__version__), "numpy": "x"} and {type(v) for v in back.values()} == {str}


Local = Enum("Local", "A")
Local.__qualname__ = "test.<locals>.Local"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "cannot store a builtins.object"),
        (len, "builtin_function_or_method"),
        (torch.nn.Linear, "cannot store the class torch.nn.modules.linear.Linear"),
        (defaultdict(lambda: 0), "cannot store a defaultdict: its factory is '<lambda>', expected bool, "),
        (Local.A, "cannot store a Local: its class test_values.test.<locals>.Local is not found under that name"),
        (Path("\ud800"), "cannot store a PosixPath: .* surrogates not allowed"),
        ("\ud800", "not valid Unicode"),
        (1 << 9000, "an integer of 9001 bits"),
    ],
)
def test_what_cannot_be_stored_exactly_is_refused_by_path(value: Any, reason: str) -> None:
    with pytest.raises(StateError, match=rf"state\['a'\]\[0\]\['b'\]: .*{reason}"):
        encode({"a": [{"b": value}]})


def test_a_class_that_is_not_imported_is_named() -> None:
    node = json.loads(dump_json(encode(Colour.RED)).replace(b"test_values", b"elsewhere"))
    with pytest.raises(CorruptError, match=r"class elsewhere.Colour is not known here; import its module first"):
        decode(node)
    assert "elsewhere" not in sys.modules


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
        {"#namedtuple": 5},
        {"#namedtuple": ["test_values", "Pair", [1, 2, 3]]},
        {"#namedtuple": ["builtins", "tuple", [1]]},
        {"#namedtuple": ["os", "system", ["true"]]},
        {"#deque": [-1, []]},
        {"#defaultdict": ["eval", []]},
        {"#enum": ["builtins", "int", None, 5]},
        {"#enum": ["test_values", "Colour", "BLUE", None]},
        {"#enum": ["test_values", 5, "BLUE", None]},
        {"#path": ["run", "/"]},
        {"#bytesio": ["", -1]},
        {"#range": [1, 2, 0]},
        {"#datetime": ["yesterday", 0, None]},
        {"#timedelta": [10**20, 0, 0]},
        {"#timezone": "../../etc/passwd"},
        {"#timezone": [[9, 0, 0]]},
        {"#torch.dtype": "load"},
        {"#torch.device": "abacus"},
        {"#torch.size": ["x"]},
        {"#nothing": 1},
    ],
)
def test_a_malformed_form_is_corrupt(node: Any) -> None:
    with pytest.raises(CorruptError):
        decode(node)
