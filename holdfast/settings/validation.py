"""Validates plain data against a model. Reports all errors of a file at once.

Each error is one line with the file, the key, the value that was got and the values that were expected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING
from functools import cache
from typing import Any, TypeVar

from holdfast.settings.aliases import Aliases, Path
from holdfast.settings.errors import SettingsError
from holdfast.settings.keys import Key, item_type, keys_of, members

_Model = TypeVar("_Model")
_SHOWN = 80  # maximum number of characters of a value in an error


def validated(
    model: type[_Model],
    given: Any,
    found: Mapping[Path, str] | None = None,
    *,
    source: str,
    sources: Mapping[str, str] | None = None,
) -> _Model:
    """Validate plain data and return an instance of its model.

    Two kinds of values are converted. Where the model has text, a number becomes its spelling in the file. Where the
    model has a list or a section, an empty value (`key:`) becomes an empty list or section.

    Args:
        model: the model; see `keys`.
        given: keys and values from a file or a caller.
        found: further problems, found by the caller, that are reported with the others; from path to text.
        source: name of the file or caller, for errors.
        sources: the same for single keys of the top level, where it differs.

    Raises:
        UsageError: the data are invalid. The message has one line for each problem.
    """
    aliases = Aliases()
    given = aliases.replaced(model, given)
    problems: dict[Path, str] = aliases.problems
    data = _plain(model, given, problems)
    instance = _checked(model, data, problems)
    problems |= found or {}
    for path, problem in list(_broken_rules(model, data, (), frozenset(problems))):
        problems.setdefault(path, problem)
    if problems:
        named: dict[Path, str] = {(): source, **{(name,): other for name, other in (sources or {}).items()}}
        lines = (
            _line(named.get(path[:1], source), aliases.as_written(path), problem) for path, problem in problems.items()
        )
        raise SettingsError("\n".join(lines))
    return instance


def got(value: Any, expected: str) -> str:
    """The text of a problem: the value that was got, shortened, and the values that were expected."""
    shown = "nothing" if value is None else repr(value)
    return f"got {shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + '...'}, expected {expected}"


def unknown(name: str, known: Iterable[str]) -> str:
    """The text of a problem with a key that does not exist, with the nearest known key."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"unknown key, {f'did you mean {near[0]}?' if near else 'known keys: ' + ', '.join(known)}"


def _plain(model: Any, given: Any, problems: dict[Path, str], path: Path = ()) -> Any:
    """The data with numbers as text where the model has text, and without empty sections and lists."""
    if not isinstance(given, Mapping):
        return given
    keys, data = keys_of(model), {}
    for name, value in given.items():
        key, name = keys.get(name), str(name)
        if key is None:
            data[name] = value
        elif value is not None or not (key.container or key.is_optional):
            data[name] = _plain_value(key, key.type, value, problems, (*path, name))
    return data


def _plain_value(key: Key, of: Any, value: Any, problems: dict[Path, str], path: Path) -> Any:
    if isinstance(value, Mapping) and dataclasses.is_dataclass(of):
        return _plain(of, value, problems, path)
    if isinstance(value, Mapping | list | tuple):
        inside = item_type(of)
        if inside is of:  # a plain value's place
            return value
        if isinstance(value, Mapping):
            return {str(at): _plain_value(key, inside, item, problems, (*path, str(at))) for at, item in value.items()}
        return [_plain_value(key, inside, item, problems, (*path, at)) for at, item in enumerate(value)]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value) if str in members(of) and not {int, float} & {*members(of)} else value
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str | int | float | None):
        problems[path] = got(value, key.values)
        return "-"
    if isinstance(value, str) and not _is_text(value, key.metadata.get("free_text", False)):
        problems[path] = got(value, f"{key.values}, printable and in one line")
        return "-"
    return value


def _is_text(value: str, free: bool) -> bool:
    """Whether the text can be an argument of a program or, unless it is `free`, part of one line of a file."""
    if free:
        return "\0" not in value and not any("\ud800" <= letter <= "\udfff" for letter in value)
    return value.isprintable()


def _checked(model: Any, data: Any, problems: dict[Path, str]) -> Any:
    """The instance that pydantic makes; None if the data are invalid.

    Adds pydantic's errors to `problems`, except for values that have a problem already.
    """
    from pydantic import ValidationError

    try:
        return _adapter(model).validate_json(json.dumps(data, default=repr), strict=True, extra="forbid")
    except ValidationError as error:
        for each in error.errors(include_url=False, include_context=False):
            path, key, within, is_item = _place(model, each["loc"])
            problems.setdefault(path, _problem(each, key, within, is_item))
    except (RecursionError, ValueError) as error:
        problems[()] = f"not plain data: {error}"
    return None


@cache
def _adapter(model: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(model)


def _place(model: Any, location: Path) -> tuple[Path, Key | None, Any, bool]:
    """Finds the place of an error.

    Returns:
        Its path without the members of unions; its key; the model of that key; and whether an item of a list or
        mapping is invalid, rather than the whole value.
    """
    path: list[str | int] = []
    key, of, is_item = None, model, False
    for part in location:
        if dataclasses.is_dataclass(of):
            model = of
            key = keys_of(model).get(str(part))
            path.append(part)
            of, is_item = (key.type if key else None), False
        elif (inner := item_type(of)) is not of and of is not None:
            path.append(part)
            of, is_item = inner, True
        else:
            break
    return tuple(path), key, model, is_item


def _problem(error: Any, key: Key | None, within: Any, is_item: bool) -> str:
    if error["type"] == "unexpected_keyword_argument":
        return unknown(str(error["loc"][-1]), keys_of(within))
    if key is None:
        return got(error["input"], "a mapping (key: value)")
    expected = key.values if is_item or not key.container else key.container
    return f"missing, expected {expected}" if error["type"] == "missing" else got(error["input"], expected)


class _Refused(Exception):
    """Raised when a rule reads an invalid value."""


class _Accepted:
    """A section as a rule gets it. To read an invalid value raises `_Refused`."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise _Refused(name)


def _broken_rules(model: Any, data: Any, path: Path, refused: frozenset[Path]) -> Iterator[tuple[Path, str]]:
    """Violations of the rules of this section and of the sections below it, as (path, problem)."""
    if not isinstance(data, Mapping) or path in refused:
        return
    for name, key in keys_of(model).items():
        below = data.get(name)
        sections = enumerate(below) if isinstance(below, list) else [(None, below)]
        for index, section in sections if key.section else ():
            place = (*path, name) if index is None else (*path, name, index)
            yield from _broken_rules(key.section, section, place, refused)
    rules = getattr(model, "rules", ())
    accepted = rules and _accepted(model, data, path, refused)
    for rule in rules:
        with contextlib.suppress(_Refused):
            yield from [((*path, *name.split(".")), problem) for name, problem in rule(accepted, data)]


def _accepted(model: Any, data: Mapping[str, Any], path: Path, refused: frozenset[Path]) -> _Accepted:
    values = {}
    for name, key in keys_of(model).items():
        with contextlib.suppress(_Refused):
            if name in data:
                values[name] = _accepted_value(key.type, data[name], (*path, name), refused)
            elif key.default is not MISSING and (*path, name) not in refused:
                values[name] = key.default
    return _Accepted(values)


def _accepted_value(of: Any, value: Any, path: Path, refused: frozenset[Path]) -> Any:
    """A value converted to the type of its model. Invalid items of a list or mapping are left out."""
    if path in refused:
        raise _Refused(path)
    if isinstance(value, Mapping) and dataclasses.is_dataclass(of):
        return _accepted(of, value, path, refused)
    if not isinstance(value, Mapping | list):
        return _adapter(of | None).validate_json(json.dumps(value), strict=True)
    inside, items = item_type(of), {}
    for at, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        with contextlib.suppress(_Refused):
            items[at] = _accepted_value(inside, item, (*path, at), refused)
    return items if isinstance(value, Mapping) else tuple(items.values())


def _line(source: str, path: Path, problem: str) -> str:
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return " ".join(f"{source}: {where}: {problem}".split() if where else f"{source}: {problem}".split())
