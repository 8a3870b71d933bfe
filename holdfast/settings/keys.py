"""The keys of a model and their descriptions. Errors, reference pages and JSON Schemas are made from them.

A model is a frozen dataclass. A field's type describes its values; its metadata add:

    description     one sentence, for the reference and the schema
    ge, gt, le, lt  limits of a number
    pattern         a regular expression that the whole text must match, with ^ and $
    unit, example   for the reference
    expected        the allowed values in words, if type and limits do not describe them; for a list or a mapping, the
                    allowed items
    derived         the default in words, if it depends on other keys
    free_text       True if the text may have line breaks
    also_named      another name that files may use for the key

pydantic reads those metadata that it knows, under the same names. A model may have `rules`: methods that get the
section and its data, and yield (key, problem) for each violation. A rule that reads an invalid value is skipped. So one
validation reports both the invalid values and the violations of rules between valid values.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from functools import cache
from typing import Any, Literal


def key(description: str, *, default: Any = MISSING, **metadata: Any) -> Any:
    """A field of a model.

    Args:
        description: one or a few sentences.
        default: the default. A dict is copied for each instance.
        metadata: further metadata; see the top of this module.
    """
    metadata["description"] = description
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a model.

    Attributes:
        name: the name of the key.
        type: the type of its values, without None.
        is_optional: whether the value may be None.
        default: the default; MISSING if there is none.
        metadata: see the top of this module.
    """

    name: str
    type: Any
    is_optional: bool
    default: Any
    metadata: Mapping[str, Any]

    @property
    def is_required(self) -> bool:
        return self.default is MISSING and "derived" not in self.metadata

    @property
    def section(self) -> Any:
        """The model of this key's section, or of each item of its list; None for a plain value."""
        found = item_type(self.type) if self.is_list else self.type
        return found if dataclasses.is_dataclass(found) else None

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.type) is tuple

    @property
    def is_mapping(self) -> bool:
        return typing.get_origin(self.type) in (Mapping, dict)

    @property
    def values(self) -> str:
        """The allowed values in words; for a list or a mapping, the allowed items."""
        return str(self.metadata.get("expected") or _words(item_type(self.type), self.metadata))

    @property
    def container(self) -> str:
        """The kind of container in words: "a list", "a mapping (key: value)", or "" for a plain value."""
        if self.is_list:
            return "a list"
        return "a mapping (key: value)" if self.is_mapping or self.section else ""


@cache
def keys_of(model: type) -> dict[str, Key]:
    """The keys of a model, by name and in order."""
    hints = typing.get_type_hints(model)
    return {field.name: _key(field, hints[field.name]) for field in dataclasses.fields(model)}


def item_type(of: Any) -> Any:
    """The type of a list's items or of a mapping's values; any other type is returned as it is."""
    arguments = typing.get_args(of)
    if typing.get_origin(of) is tuple:
        return arguments[0]
    return arguments[1] if typing.get_origin(of) in (Mapping, dict) else of


def members(of: Any) -> tuple[Any, ...]:
    """The types of a union; for any other type, that type alone."""
    return typing.get_args(of) if typing.get_origin(of) in (types.UnionType, typing.Union) else (of,)


def _key(field: dataclasses.Field[Any], hint: Any) -> Key:
    known = tuple(each for each in members(hint) if each is not type(None))
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return Key(
        name=field.name,
        type=known[0] if len(known) == 1 else typing.Union[known],  # noqa: UP007
        is_optional=len(known) < len(members(hint)),
        default=default,
        metadata=field.metadata,
    )


def _words(of: Any, metadata: Mapping[str, Any]) -> str:
    if len(members(of)) > 1:
        return " or ".join(_words(each, metadata) for each in members(of))
    if typing.get_origin(of) is Literal:
        return f"one of {', '.join(map(str, typing.get_args(of)))}"
    if dataclasses.is_dataclass(of):
        return "a mapping (key: value)"
    if of in (int, float):
        return {int: "a whole number", float: "a number"}[of] + _range(metadata)
    return {bool: "true or false", str: "text"}.get(of, str(of))


def _range(metadata: Mapping[str, Any]) -> str:
    low, above, high = metadata.get("ge"), metadata.get("gt"), metadata.get("le")
    if low is not None and high is not None:
        return f", from {low} to {high}"
    limits = {", at least": low, ", more than": above, ", at most": high}
    return "".join(f"{words} {limit}" for words, limit in limits.items() if limit is not None)
