"""Makes a JSON Schema from a model. Editors use it to complete keys and to mark errors in a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from holdfast.settings.keys import keys_of
from holdfast.settings.yaml_file import parse_yaml


def json_schema(model: type, title: str) -> dict[str, Any]:
    """Make the JSON Schema of a file.

    Args:
        model: the model of the file; see `keys`.
        title: the title of the schema.
    """
    from pydantic import TypeAdapter

    schema = TypeAdapter(model).json_schema()
    for section in sections_of(model):
        _complete(schema if section is model else schema["$defs"][section.__name__], section)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}


def sections_of(model: Any) -> Iterator[Any]:
    """Yield a model and the models of its sections, in the order of the keys."""
    yield model
    for key in keys_of(model).values():
        if key.section:
            yield from sections_of(key.section)


def _complete(schema: dict[str, Any], model: type) -> None:
    """Adds to a section's schema the metadata that pydantic does not read."""
    schema["additionalProperties"] = False
    schema["required"] = [name for name, key in keys_of(model).items() if key.is_required]
    schema.pop("title", None)
    for name, key in keys_of(model).items():
        entry = schema["properties"][name]
        entry |= {"description": key.metadata["description"]}
        entry.pop("title", None)
        _let_text_be_a_number(entry)
        if "derived" in key.metadata or dataclasses.is_dataclass(key.default):
            entry.pop("default", None)
        if "example" in key.metadata:
            entry["examples"] = [parse_yaml(str(key.metadata["example"]).encode(), name)]
        if "also_named" in key.metadata:
            schema["properties"][key.metadata["also_named"]] = entry | {"description": f"Another name of `{name}`."}


def _let_text_be_a_number(entry: Any) -> None:
    """Allows a number wherever text is allowed, as `validation` does."""
    if isinstance(entry, dict):
        if entry.get("type") == "string" and not {"enum", "const", "format"} & entry.keys():
            entry["type"] = ["string", "number"]
        for inner in ("items", "additionalProperties", "anyOf"):
            _let_text_be_a_number(entry.get(inner))
    elif isinstance(entry, list):
        for each in entry:
            _let_text_be_a_number(each)
