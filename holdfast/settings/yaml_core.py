"""Parses YAML by the core schema of YAML 1.2, restricted to plain data: no aliases, no duplicate keys, limited depth.

PyYAML's own loaders follow YAML 1.1, which reads `1:00:00` as 3600, `012` as 10 and `on` as true. Job files have
Slurm's notations, so here `1:00:00` and `on` are text. A number keeps its spelling: str() of `2.10` is "2.10".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml

MAX_DEPTH = 32

_STR_TAG = "tag:yaml.org,2002:str"
_LINE_BREAKS_OF_1_1 = re.compile("[\x85\u2028\u2029]")


def plain_data(text: str) -> Any:
    """Parse one YAML document. Keys are always text, as they are written.

    Returns:
        dict, list, str, int, float, bool or None. A number's str() is its spelling in the document.

    Raises:
        yaml.YAMLError: the text is not YAML; or it has an alias, a duplicate key, a tag other than !!str, a second
            document, more than 32 levels, or a character that is a line break only in YAML 1.1.
        ValueError: a number has more digits than Python's int() accepts.
    """
    if found := _LINE_BREAKS_OF_1_1.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise yaml.YAMLError(f"line {line} has {found[0]!a}, a line break only in YAML 1.1; write it as an escape")
    events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.BaseLoader)
    next(events)  # the stream's start
    if isinstance(next(events), yaml.StreamEndEvent):
        return None
    value = _value(events, next(events), depth=0)
    next(events)  # the document's end
    if not isinstance(after := next(events), yaml.StreamEndEvent):
        raise _refusal(after, "got a second document, expected one")
    return value


class _WrittenInt(int):
    """A whole number whose str() is its spelling in the file."""

    spelling: str

    def __str__(self) -> str:
        return self.spelling


class _WrittenFloat(float):
    """A number whose str() is its spelling in the file."""

    spelling: str

    def __str__(self) -> str:
        return self.spelling


def _value(events: Iterator[yaml.Event], event: Any, depth: int) -> Any:
    if isinstance(event, yaml.AliasEvent):
        raise _refusal(event, "aliases (*name) are not allowed")
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event)
    if event.tag is not None:
        raise _refusal(event, f"tag {event.tag} is not allowed")
    if depth == MAX_DEPTH:
        raise _refusal(event, f"nested too deeply, more than {MAX_DEPTH} levels")
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(_value(events, item, depth + 1))
        return items
    mapping: dict[str, Any] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        if not isinstance(key, yaml.ScalarEvent):
            raise _refusal(key, "a key is not plain text")
        if key.value in mapping:
            raise _refusal(key, f"key {key.value!r} is given twice")
        mapping[key.value] = _value(events, next(events), depth + 1)
    return mapping


def _scalar(event: Any) -> Any:
    text = event.value
    if event.tag not in (None, "!", _STR_TAG):
        raise _refusal(event, f"tag {event.tag} is not allowed")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _refusal(event, "half of a surrogate pair is not text")
    if event.tag is None and event.implicit[0]:  # neither quoted nor tagged
        for pattern, parsed in _CORE:
            if pattern.fullmatch(text):
                return parsed(text)
    return text


def _number(value: int | float, text: str) -> int | float:
    if str(value) == text:
        return value
    written = _WrittenInt(value) if isinstance(value, int) else _WrittenFloat(value)
    written.spelling = text
    return written


# YAML 1.2.2, section 10.3.2
_CORE: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?[0-9]+"), lambda text: _number(int(text), text)),
    (re.compile(r"0o[0-7]+"), lambda text: _number(int(text[2:], 8), text)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: _number(int(text[2:], 16), text)),
    (
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"),
        lambda text: _number(float(text), text),
    ),
    (
        re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"),
        lambda text: _number(float(text.replace(".", "")), text),
    ),
)


def _refusal(event: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
