"""Catalogues of messages: the contract between two kinds of processes, which both ends check.

A message is a JSON object. `int` means a whole number of at least 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, get_args

_EXPECTED: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a string", list: "a list",
    type(None): "null",
}  # fmt: skip


class MalformedMessage(ValueError):
    """A message is not in the catalogue, or a field is missing or of another type."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One kind of message.

    Attributes:
        summary: its meaning.
        fields: the type of each field. A type with `from_json` stands for an object that it parses.
        optional: fields that may be left out.
        deadline: the name of the sender's deadline; "": none.
        answer: names of the answer's fields.
    """

    summary: str
    fields: Mapping[str, type | UnionType]
    optional: frozenset[str]
    deadline: str
    answer: str


@dataclass(frozen=True)
class Way:
    """The messages from one kind of process to another, by name."""

    sender: str
    receiver: str
    messages: dict[str, Message]


def message(
    summary: str, /, *, optional: str = "", deadline: str = "", answer: str = "", **fields: type | UnionType
) -> Message:
    """A kind of message. `optional` and `answer` are names of fields, separated by spaces."""
    names = frozenset(optional.split())
    return Message(summary=summary, fields=fields, optional=names, deadline=deadline, answer=answer)


def check(given: Mapping[str, Any], *ways: Way) -> dict[str, Any]:
    """The fields of a message, with objects of their types. Fields that are not in the catalogue are left out.

    Args:
        given: the message, with its name under "op".
        ways: where it may be.

    Raises:
        MalformedMessage: it is on none of the ways, or is malformed.
        Exception: from a type's `from_json`.
    """
    op = given.get("op")
    kind = next((way.messages[op] for way in ways if isinstance(op, str) and op in way.messages), None)
    if kind is None:
        raise MalformedMessage(f"unknown request {op!r:.40} of a {ways[0].sender}")
    found = {}
    for name, hint in kind.fields.items():
        if name not in given:
            if name not in kind.optional:
                raise MalformedMessage(f"malformed {op!r}: {name} is missing")
            continue
        found[name] = _field(f"malformed {op!r}: {name}", given[name], get_args(hint) or (hint,))
    return found


def check_whole(given: Mapping[str, Any], way: Way) -> None:
    """As `check`, and refuses a field that is not in the catalogue: both ends are of one release."""
    check(given, way)
    kind = way.messages[given["op"]]
    if unknown := sorted(given.keys() - kind.fields.keys() - {"op"}):
        raise MalformedMessage(f"malformed {given['op']!r}: unknown field {unknown[0]}")


def _field(what: str, value: Any, kinds: Collection[Any]) -> Any:
    if type(value) is dict and (parsed := [one for one in kinds if hasattr(one, "from_json")]):
        return parsed[0].from_json(value)
    is_known = type(value) in kinds or (type(value) is int and float in kinds)
    if not is_known or (type(value) is int and value < 0):
        expected = " or ".join(_EXPECTED.get(one, "an object") for one in kinds)
        raise MalformedMessage(f"{what} is {value!r:.40}, expected {expected}")
    return value
