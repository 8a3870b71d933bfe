"""Names in a memory directory: what is built is read, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckpt
from ckpt.format.memory_names import (
    COPY,
    KINDS,
    OWN,
    PARITY,
    StoredName,
    copy_stem,
    kind_of,
    names_of,
    own_stem,
    parse_name,
)

NUMBERS = st.integers(0, 999_999_999)
STEMS = st.one_of(st.builds(own_stem, NUMBERS), st.builds(copy_stem, NUMBERS, NUMBERS), st.just(PARITY))
NAMES = st.builds(StoredName, STEMS, NUMBERS)


@given(NAMES)
def test_every_name_that_is_built_is_read(name: StoredName) -> None:
    assert parse_name(str(name)) == name
    assert name.kind == kind_of(str(name)) and name.kind in KINDS


@given(st.one_of(st.text(), st.from_regex(r"(own|copy|parity|fetch)(-[0-9٣]*){0,4}\n?", fullmatch=True)))
def test_whatever_is_read_is_built_the_same(text: str) -> None:
    assert (name := parse_name(text)) is None or str(name) == text


@pytest.mark.parametrize(
    "name",
    [
        *("", "own", "own-0", "own-0-0-0", "copy-0-0", "copy-1-2-3-4", "parity", "parity-0-0", "fetch-0", "other-0-0"),
        *("own-00-0", "own-0-01", "own--1-0", "own-0-1\n", " own-0-0", "own-0-0 ", "own-٣-0", "own-1_0-0", "own-+1-0"),
        *("../own-0-0", "own-0-0/../x", "own-0-0.json", ".own-0-0", "Own-0-0", "own-0-" + "9" * 300, "parity-\0"),
    ],
)
def test_a_hostile_name_is_refused(name: str) -> None:
    assert parse_name(name) is None
    assert names_of([f"{name}.json"]) == []


@given(st.lists(NAMES), st.sampled_from([(), (OWN,), (OWN, COPY), (PARITY,)]))
def test_a_listing_gives_the_names_of_the_kinds_wanted(names: list[StoredName], kinds: tuple[str, ...]) -> None:
    listing = [f"{name}.{ending}" for name in names for ending in ("json", "data", "json.tmp")]
    assert names_of([*listing, "board", "agent.lock"], *kinds) == sorted(
        name for name in names if not kinds or name.kind in kinds
    )


def test_no_other_module_spells_these_names() -> None:
    spelt = re.compile(r"""["'](own|copy|parity|fetch)-[\[{*]""")
    package = Path(ckpt.__file__).parent
    spelling = {path.name for path in package.rglob("*.py") if spelt.search(path.read_text())}
    assert spelling == {"memory_names.py"}
