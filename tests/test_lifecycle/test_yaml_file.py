"""The YAML reader: what people write, above all in Slurm's notations, means what it says; the rest is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.settings.errors import SettingsError
from holdfast.settings.yaml_file import MAX_FILE_BYTES, parse_yaml, read_settings, read_yaml


def parsed(text: str) -> Any:
    return parse_yaml(text.encode(), "job.yaml")


# How a scalar is spelt, and its value by the core schema of YAML 1.2. YAML 1.1 takes most of these for something else.
SCALARS = [
    ("1:00:00", "1:00:00"), ("30:00", "30:00"), ("190:20:30", "190:20:30"), ("1:30", "1:30"), ("1:30.5", "1:30.5"),
    ("2-12", "2-12"), ("2-12:30", "2-12:30"), ("1-0:0:1", "1-0:0:1"), ("2026-11-22", "2026-11-22"),
    ("2026-11-22T10:00:00", "2026-11-22T10:00:00"), ("on", "on"), ("off", "off"), ("yes", "yes"), ("No", "No"),
    ("y", "y"), ("n", "n"), ("1_000", "1_000"), ("0b11", "0b11"), ("=", "="), ("<<", "<<"), ("016G", "016G"),
    ("node[1-4]", "node[1-4]"), ("gpu:a100:8", "gpu:a100:8"), ("1,3", "1,3"), ("80%", "80%"), ("%j", None),
    ("+1", 1), ("012", 12), ("0o17", 15), ("0x1F", 31), ("-0", 0), ("1e3", 1000.0), ("3e-4", 0.0003), (".5", 0.5),
    ("1.", 1.0), ("2.10", 2.1), (".inf", math.inf), ("-.INF", -math.inf), ("true", True), ("TRUE", True),
    ("False", False), ("tRUE", "tRUE"), ("~", None), ("null", None), ("Null", None), ("nULL", "nULL"), ("", None),
    ("'1'", "1"), ('"true"', "true"), ("!!str 012", "012"), ("! 3", "3"), ("0o8", "0o8"), ("1e", "1e"), ("0x", "0x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), [pair for pair in SCALARS if pair[0] != "%j"])
def test_a_scalar_means_what_yaml_1_2_says(text: str, value: Any) -> None:
    found = parsed(f"key: {text}\n")["key"]
    assert found == value and isinstance(found, type(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        assert str(found) == text  # also a number that becomes text keeps its spelling


def test_not_a_number_is_read_as_such() -> None:
    assert math.isnan(parsed(".nan"))


def test_keys_are_text() -> None:
    assert parsed("{on: 1, 1: a, 2.10: b, ~: c, true: d}") == {"on": 1, "1": "a", "2.10": "b", "~": "c", "true": "d"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\n'a': 3\n", "key 'a' is given twice at line 3, column 1"),
        ("a: {b: 1, b: 2}\n", "key 'b' is given twice"),
        ("a: &x [1]\nb: *x\n", "aliases (*name) are not allowed at line 2, column 4"),
        ("a: !!timestamp 2026-11-22\n", "tag tag:yaml.org,2002:timestamp is not allowed"),
        ("a: !!set {b}\n", "is not allowed"),
        ("? [a]\n: 1\n", "a key is not plain text"),
        ("a: 1\n---\nb: 2\n", "got a second document, expected one"),
        ("a: b: c\n", "mapping values are not allowed here"),
        ("a: x\x85b: 1\n", "line 1 has '\\x85', a line break only in YAML 1.1"),
        ("a: \x07\n", "unacceptable character"),
        ('a: "\\ud800"\n', "half of a surrogate pair is not text"),
        (f"a: {'9' * 5000}\n", "Exceeds the limit"),
        ("[" * 40, "nested too deeply, more than 32 levels"),
        ("a:\n" + "".join(f"{' ' * n}- \n" for n in range(1, 3)) + "{" * 90_000, "not valid YAML"),
    ],
)
def test_what_is_not_read_is_one_line_that_names_the_place(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parsed(text)
    assert str(caught.value).startswith("job.yaml: not valid YAML: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_has_to_be_a_small_text(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    for data, message in (
        (b"#" * MAX_FILE_BYTES + b"\n", "got more than 1048576 bytes"),
        (b"a: \xff", r"not UTF-8 text \(byte 3\)"),
    ):
        path.write_bytes(data)
        with pytest.raises(SettingsError, match=message):
            read_yaml(path, "a job file")
    with pytest.raises(SettingsError, match="not a regular file; expected a job file"):
        read_yaml(tmp_path, "a job file")
    with pytest.raises(SettingsError, match="nope: no such file; expected a job file"):
        read_yaml(tmp_path / "nope", "a job file")


def test_settings_are_keys_and_values(tmp_path: Path) -> None:
    path = tmp_path / "health.yaml"
    path.write_text("# none yet\n")
    assert read_settings(path) == {}
    path.write_text("- a\n")
    with pytest.raises(SettingsError, match="got a list, expected keys and values"):
        read_settings(path)


texts = st.text(st.characters(max_codepoint=0xD7FF), max_size=20)  # json escapes those above as two surrogates
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
data = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))


@given(data)
@settings(max_examples=100, deadline=None)
def test_json_is_yaml(value: Any) -> None:
    assert parsed(json.dumps(value)) == value


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text_is_data_or_one_line(text: str) -> None:
    try:
        parsed(text)
    except SettingsError as error:
        assert "\n" not in str(error)
    except UnicodeEncodeError:
        pass  # st.text() with half of a surrogate pair, which no file has
