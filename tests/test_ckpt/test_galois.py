"""The arithmetic of parity: ISA-L and NumPy give the same bytes, and any losses within the promise can be solved."""

from __future__ import annotations

import importlib.util
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.redundancy import gf256 as galois
from ckpt.redundancy.gf256 import combination, combine, multiply, multiply_add, parity_row


def test_isal_is_found_in_the_wheel_that_we_depend_on():
    assert galois.isal() is not None


@pytest.fixture
def without_wheel(monkeypatch):
    """No pyeclib; what was looked up before is looked up again, now and afterwards."""
    monkeypatch.setattr(galois, "find_spec", lambda name: None)
    caches = (galois.isal, galois._warn_of_numpy, galois._isal_table)
    for cache in caches:
        cache.cache_clear()
    yield monkeypatch
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("place", ["the loader's", "the environment's"])
def test_the_systems_isal_is_used_where_the_wheel_is_missing(without_wheel, tmp_path, place):
    (wheels,) = Path(importlib.util.find_spec("pyeclib").origin).parents[1].glob("pyeclib.libs/libisal*")
    (tmp_path / "lib").mkdir()
    system = tmp_path / "lib" / "libisal.so.2"
    system.symlink_to(wheels)
    if place == "the loader's":
        without_wheel.setattr(galois, "_ISAL_NAME", str(system))
    else:
        without_wheel.setattr(galois.sys, "prefix", str(tmp_path))
    assert galois.isal() is not None
    into = bytearray(200)
    multiply_add([memoryview(into)], memoryview(bytes([3]) * 200), [2])
    assert into == bytes([multiply(2, 3)]) * 200


def test_a_library_of_that_name_without_the_calls_is_not_taken(without_wheel, tmp_path):
    without_wheel.setattr(galois, "_isal_names", lambda: iter([str(tmp_path / "none.so"), "libc.so.6"]))
    assert galois.isal() is None


def test_parity_by_numpy_is_told_once(without_wheel, caplog):
    without_wheel.setattr(galois, "_isal_names", lambda: iter(()))
    for coefficients in ([1], [2], [3]):
        multiply_add([memoryview(bytearray(100))], memoryview(bytes(100)), coefficients)
        assert len(caplog.records) == (coefficients != [1])  # XOR is as fast without it
    assert "ISA-L was not found" in caplog.text and "libisal2" in caplog.text


@given(st.binary(min_size=64, max_size=3000), st.integers(0, 255), st.binary(min_size=1, max_size=5))
def test_isal_and_numpy_give_the_same_bytes(data, fill, coefficients):
    source = np.frombuffer(data, np.uint8)
    targets = np.full((2, len(coefficients), len(source)), fill, np.uint8)
    galois.isal_multiply_add(targets[0], source, coefficients)
    galois.numpy_multiply_add(targets[1], source, coefficients)
    assert (targets[0] == targets[1]).all()


@pytest.mark.parametrize("library", [True, False])
@given(data=st.binary(max_size=200), coefficients=st.binary(min_size=1, max_size=4))
def test_multiples_are_those_of_the_field(library, data, coefficients):
    into = [bytearray(len(data)) for _ in coefficients]
    with pytest.MonkeyPatch.context() as patch:
        if not library:
            patch.setattr(galois, "isal", lambda: None)
        multiply_add([*map(memoryview, into)], memoryview(data), coefficients)
    for made, coefficient in zip(into, coefficients, strict=True):
        assert bytes(made) == bytes(multiply(coefficient, byte) for byte in data)


def test_the_field_is_one():
    nonzero = range(1, 256)
    for a in (1, 2, 3, 0x53, 255):
        assert sorted(multiply(a, b) for b in nonzero) == list(nonzero)
        assert all(multiply(a, b) == multiply(b, a) for b in nonzero)
        assert all(multiply(a, b ^ 7) == multiply(a, b) ^ multiply(a, 7) for b in nonzero)
    assert multiply(2, 0x80) == 0x1D


@pytest.mark.parametrize("parity", range(1, 5))
@pytest.mark.parametrize("data", range(1, 8))
def test_any_lost_symbols_follow_from_any_as_many_rows(data, parity):
    symbols = [(37 * d + 11) % 256 for d in range(data)]
    rows = [parity_row(row, data, parity) for row in range(parity)]
    assert rows[0] == (1,) * data
    values = [0] * parity
    for row, coefficients in enumerate(rows):
        for symbol, coefficient in zip(symbols, coefficients, strict=True):
            values[row] ^= multiply(coefficient, symbol)
    for count in range(1, min(data, parity) + 1):
        for missing in combinations(range(data), count):
            for used in combinations(range(parity), count):
                for lost in missing:
                    weights = combination(lost, missing, used, data, parity)
                    found = 0
                    for row, weight in weights.items():
                        rest = values[row]
                        for d in set(range(data)) - set(missing):
                            rest ^= multiply(rows[row][d], symbols[d])
                        found ^= multiply(weight, rest)
                    assert found == symbols[lost]


def test_more_symbols_than_the_field_has_are_refused():
    with pytest.raises(ValueError, match="256"):
        parity_row(0, 255, 2)


@pytest.mark.parametrize("library", [True, False])
@given(
    nbytes=st.integers(0, 200),
    rows=st.integers(1, 3),
    terms=st.lists(
        st.tuples(st.binary(min_size=3, max_size=3), st.integers(0, 200), st.binary(min_size=1)), max_size=5
    ),
    whole=st.booleans(),
)
def test_terms_are_combined_as_they_would_be_added_one_by_one(library, nbytes, rows, terms, whole):
    placed = [
        (coefficients[:rows], at, memoryview((data * nbytes)[: nbytes - at]))
        for coefficients, at, data in ((c, 0 if whole else min(at, nbytes), data) for c, at, data in terms)
    ]
    into = [memoryview(bytearray(b"\xa5" * nbytes)) for _ in range(rows)]
    with pytest.MonkeyPatch.context() as patch:
        if not library:
            patch.setattr(galois, "isal", lambda: None)
        combine(into, placed)
    for row, made in enumerate(into):
        expected = bytearray(nbytes)
        for coefficients, at, data in placed:
            for index, byte in enumerate(data, at):
                expected[index] ^= multiply(coefficients[row], byte)
        assert made == expected
