"""Plain data against a model: every problem of a file at once, and nothing converted but numbers to text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast.settings.errors import SettingsError
from holdfast.settings.keys import key
from holdfast.settings.validation import validated
from holdfast.settings.yaml_file import parse_yaml


@dataclass(frozen=True, kw_only=True)
class Disk:
    mount: str = key("Where.", pattern="^/[a-z]+$", expected="an absolute path")
    size: int = key("How large.", default=1, ge=1, le=9)


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str = key("Its name.", default="x")
    share: float | None = key("A share.", default=None, gt=0, allow_inf_nan=False)
    kind: Literal["a", "b"] = key("Its kind.", default="a")
    amount: int | str = key("A number, or 8:a.", default=0)
    on: bool = key("Whether.", default=False)
    words: tuple[str, ...] = key("Words.", default=(), free_text=True)
    env: Mapping[str, str] = key("Variables.", default={}, expected="a string")
    disk: Disk = key("A disk.", default=Disk(mount="/a"))
    more: tuple[Disk, ...] = key("Disks.", default=())
    spare: Disk | None = key("One more.", default=None)

    def _large_disks_have_a_kind(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        if self.disk.size > 5 and "kind" not in given:
            yield "disk.size", "too large without a kind"

    def _env_is_upper_case(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for name in self.env:
            if not name.isupper():
                yield f"env.{name}", "not in upper case"

    def _mounts_are_distinct(self, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        mounts = [self.disk.mount, *(disk.mount for disk in self.more)]
        if len(set(mounts)) < len(mounts):
            yield "more", "a mount is used twice"

    rules = (_large_disks_have_a_kind, _env_is_upper_case, _mounts_are_distinct)


def problems(given: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        validated(Model, given, {("env", "Q"): "found before"}, source="f.yaml")
    return [line.removeprefix("f.yaml: ") for line in str(caught.value).splitlines() if "found before" not in line]


def test_all_problems_of_a_file_are_named_each_in_a_line() -> None:
    text = """
        nam: x
        share: -1
        kind: c
        amount: 1.5
        on: yes
        words: one
        env: {A: true}
        disk: {mount: a, size: 10, sise: 1}
        more: [{mount: /a}, {size: "1"}, 3]
        spare: []
    """
    assert problems(parse_yaml(text.encode(), "f.yaml")) == [
        "share: got -1, expected a number, more than 0",
        "kind: got 'c', expected one of a, b",
        "amount: got 1.5, expected a whole number or text",
        "on: got 'yes', expected true or false",
        "words: got 'one', expected a list",
        "env.A: got True, expected a string",
        "disk.mount: got 'a', expected an absolute path",
        "disk.size: got 10, expected a whole number, from 1 to 9",
        "disk.sise: unknown key, did you mean size?",
        "more[1].mount: missing, expected an absolute path",
        "more[1].size: got '1', expected a whole number, from 1 to 9",
        "more[2]: got 3, expected a mapping (key: value)",
        "spare: got [], expected a mapping (key: value)",
        "nam: unknown key, did you mean name?",
    ]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([1], "got [1], expected a mapping (key: value)"),
        (None, "got nothing, expected a mapping (key: value)"),
        ({"zzz": 1}, "zzz: unknown key, known keys: name, share, kind"),
        ({1: 2}, "1: unknown key"),
        ({"on": None}, "on: got nothing, expected true or false"),
        ({"share": float("nan")}, "share: got nan, expected a number"),
        ({"name": "a\nb"}, "name: got 'a\\nb', expected text, printable and in one line"),
        ({"name": "\ud800"}, "name: got '\\ud800', expected text"),
        ({"words": ["a\0"]}, "words[0]: got 'a\\x00', expected text"),
        ({"words": [object]}, "words[0]: got <class 'object'>, expected text"),
        ({"name": "x" * 99, "on": "x" * 99}, f"on: got '{'x' * 76}..., expected true or false"),
    ],
)
def test_a_problem_names_key_value_and_what_was_expected(given: Any, problem: str) -> None:
    assert problems(given)[0].startswith(problem)


def test_a_rule_between_keys_is_one_problem_among_others() -> None:
    large = {"mount": "/b", "size": 6}
    twice = {"disk": {"mount": "/a"}, "more": [{"mount": "/a"}]}
    assert problems({"disk": large}) == ["disk.size: too large without a kind"]
    assert problems({"disk": large, "env": {"a": "1"}}) == [
        "disk.size: too large without a kind",
        "env.a: not in upper case",
    ]
    assert problems(twice) == ["more: a mount is used twice"]
    on = "on: got 1, expected true or false"
    assert problems({"disk": large, "on": 1}) == [on, "disk.size: too large without a kind"]
    assert problems({**twice, "on": 1}) == [on, "more: a mount is used twice"]


def test_a_rule_is_left_out_where_it_reads_a_refused_value() -> None:
    size = "disk.size: got 0, expected a whole number, from 1 to 9"
    item = "env.B: got [], expected a string"
    assert problems({"disk": {"mount": "/a", "size": 0}, "env": {"a": "1", "B": []}, "more": [{"mount": "/a"}]}) == [
        item,
        size,
        "env.a: not in upper case",
        "more: a mount is used twice",
    ]
    assert problems({"env": 3}) == ["env: got 3, expected a mapping (key: value)"]
    bad = "more[0].mount: got '-', expected an absolute path"
    assert problems({"disk": {"mount": "/a"}, "more": [{"mount": "-"}, {"mount": "/a"}]}) == [bad]


def test_text_takes_a_number_as_it_is_spelt_and_nothing_else_is_converted() -> None:
    text = b"{name: 2.10, words: [007, 1:30, 1e3], env: {A: 0x10}, amount: 8, share: 1, disk: , more: , spare: , env: }"
    found = validated(Model, parse_yaml(text.replace(b", env: }", b"}"), "f"), source="f")
    assert (found.name, found.words, found.env) == ("2.10", ("007", "1:30", "1e3"), {"A": "0x10"})
    assert (found.amount, found.share, found.disk, found.more, found.spare) == (8, 1.0, Disk(mount="/a"), (), None)
    assert validated(Model, {"name": Path("/a"), "words": ("a\nb",)}, source="f").name == "/a"
