"""Catalogues of messages: the contract between two kinds of processes, which both ends check.

A message is a JSON object, and so is the answer to a request. `int` means a whole number of at least 0, a type with
`from_json` an object that it parses, `list[...]` of such a type a list of such objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import GenericAlias, UnionType
from typing import Any, get_args

Hint = type | UnionType | GenericAlias

_EXPECTED: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "true or false", str: "a string", list: "a list",
    type(None): "null",
}  # fmt: skip


class MalformedMessage(ValueError):
    """A message is not in the catalogue, or a field is missing or of another type."""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """The fields of a message or of an answer: the type of each, and those that may be left out."""

    types: Mapping[str, Hint]
    optional: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Message:
    """One kind of message.

    Attributes:
        summary: its meaning.
        fields: its own fields.
        deadline: the name of the sender's deadline; "": none.
        answer: the fields of the answer; None: it has none, or the answer is empty.
    """

    summary: str
    fields: Fields
    deadline: str
    answer: Fields | None


@dataclass(frozen=True)
class Way:
    """The messages from one kind of process to another, by name."""

    sender: str
    receiver: str
    messages: dict[str, Message]


def fields(optional: str = "", /, **types: Hint) -> Fields:
    """Fields by name. `optional`: the names of those that may be left out, separated by spaces."""
    return Fields(types=types, optional=frozenset(optional.split()))


def message(
    summary: str, /, *, optional: str = "", deadline: str = "", answer: Fields | None = None, **types: Hint
) -> Message:
    """A kind of message. `optional` as for `fields`."""
    return Message(summary=summary, fields=fields(optional, **types), deadline=deadline, answer=answer)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message with the JSON of its objects: of each that has `to_json`, and of those in a list."""
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    return [one.to_json() for one in value] if type(value) is list and value and hasattr(value[0], "to_json") else value


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
    return _parsed(f"malformed {op!r}", given, kind_of(op, *ways).fields)


def kind_of(op: Any, *ways: Way) -> Message:
    """The kind of a message, by its name. Raises MalformedMessage."""
    kind = next((way.messages[op] for way in ways if isinstance(op, str) and op in way.messages), None)
    if kind is None:
        raise MalformedMessage(f"unknown request {op!r:.40} of a {ways[0].sender}")
    return kind


def check_whole(given: Mapping[str, Any], *ways: Way) -> dict[str, Any]:
    """As `check`, and refuses a field that is not in the catalogue: both ends are of one release."""
    found = check(given, *ways)
    _refuse_unknown(f"malformed {given['op']!r}", given.keys() - {"op"}, kind_of(given["op"], *ways).fields)
    return found


def check_answer(op: str, given: Mapping[str, Any], *ways: Way) -> dict[str, Any]:
    """The fields of the answer to a request, with objects of their types. Raises as `check_whole` does."""
    expected, what = kind_of(op, *ways).answer or Fields(types={}), f"malformed answer to {op!r}"
    _refuse_unknown(what, given.keys(), expected)
    return _parsed(what, given, expected)


def _refuse_unknown(what: str, names: Set[str], expected: Fields) -> None:
    if unknown := sorted(names - expected.types.keys()):
        raise MalformedMessage(f"{what}: unknown field {unknown[0]}")


def _parsed(what: str, given: Mapping[str, Any], expected: Fields) -> dict[str, Any]:
    found = {}
    for name, hint in expected.types.items():
        if name in given:
            found[name] = _field(f"{what}: {name}", given[name], hint)
        elif name not in expected.optional:
            raise MalformedMessage(f"{what}: {name} is missing")
    return found


def _field(what: str, value: Any, hint: Hint) -> Any:
    if isinstance(hint, GenericAlias):
        (element,) = get_args(hint)
        return [_object(what, one, element) for one in _field(what, value, list)]
    kinds = get_args(hint) or (hint,)
    if type(value) is dict and (parsed := [one for one in kinds if hasattr(one, "from_json")]):
        return _object(what, value, parsed[0])
    is_known = type(value) in kinds or (type(value) is int and float in kinds)
    if not is_known or (type(value) is int and value < 0):
        expected = " or ".join(_EXPECTED.get(one, "an object") for one in kinds)
        raise MalformedMessage(f"{what} is {value!r:.40}, expected {expected}")
    return value


def _object(what: str, value: Any, kind: Any) -> Any:
    try:
        return kind.from_json(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise MalformedMessage(f"{what} is {value!r:.40}: {type(error).__name__} {error}") from None
