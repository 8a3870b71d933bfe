"""Python values as JSON and back: exactly, or refused.

Plain JSON values stand for themselves, dicts with ordinary string keys too. Everything else is a one-entry object whose
key starts with '#':

    {"#tuple": [...]}  {"#set": [...]}  {"#dict": [[key, value], ...]}  {"#counter": [[key, count], ...]}
    {"#bytes": base64}  {"#scalar": [NumPy dtype, base64]}

Callers add tags of their own for what is stored elsewhere (tensors) through the `extend` function.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ckpt.errors import CorruptError, StateError

Path = tuple[Any, ...]
Extend = Callable[[Any, Path], Any]
Resolve = Callable[[str, Any], Any]


def encode(value: Any, path: Path = (), extend: Extend | None = None) -> Any:
    """The JSON form of a value.

    Args:
        value: None, bool, int, float, str, bytes, NumPy scalars, and dicts, lists, tuples, sets and Counters of them.
        path: where the value is found, for messages.
        extend: asked for every other value; returns its JSON form, or raises StateError.

    Raises:
        StateError: naming the path of what cannot be stored.
    """
    kind = type(value)
    if value is None or kind is bool or kind is float:
        return value
    if kind is int:
        return _encode_int(value, path)
    if kind is str:
        return _encode_str(value, path)
    if kind is dict or kind is OrderedDict:
        return _encode_dict(value, path, extend)
    if kind is list:
        return [encode(item, (*path, i), extend) for i, item in enumerate(value)]
    if kind is tuple:
        return {"#tuple": [encode(item, (*path, i), extend) for i, item in enumerate(value)]}
    if kind is set:
        return {"#set": [encode(item, path) for item in value]}
    if kind is Counter:
        return {"#counter": _encode_pairs(value, path, None)}
    if kind is bytes:
        return {"#bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.generic) and value.dtype.kind in "biufcmM":
        return {"#scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
    if extend is None:
        raise unsupported(value, path)
    return extend(value, path)


def decode(node: Any, resolve: Resolve | None = None) -> Any:
    """The value of a JSON form.

    Args:
        node: what `encode` returned, after a round trip through JSON.
        resolve: called with the tag and the content of every tag that is not of this module.

    Raises:
        CorruptError: the form is malformed.
    """
    if isinstance(node, list):
        return [decode(item, resolve) for item in node]
    if not isinstance(node, dict):
        return node
    tag = tag_of(node)
    if tag is None:
        return {key: decode(item, resolve) for key, item in node.items()}
    content = node[tag]
    try:
        if tag == "#tuple":
            return tuple(decode(item, resolve) for item in content)
        if tag == "#dict":
            return {decode(key): decode(item, resolve) for key, item in content}
        if tag == "#set":
            return {decode(item) for item in content}
        if tag == "#counter":
            return Counter({decode(key): decode(count) for key, count in content})
        if tag == "#bytes":
            return base64.b64decode(content, validate=True)
        if tag == "#scalar":
            return np.frombuffer(base64.b64decode(content[1], validate=True), np.dtype(content[0]))[0]
    except (TypeError, ValueError, IndexError, binascii.Error) as error:
        raise CorruptError(f"value: malformed {tag}: {error}") from None
    if resolve is None:
        raise CorruptError(f"value: unknown tag {tag!r:.40}")
    return resolve(tag, content)


def tag_of(node: Any) -> str | None:
    """The tag of a tagged node; None for plain JSON."""
    if isinstance(node, dict) and len(node) == 1:
        key = next(iter(node))
        if key.startswith("#"):
            return key
    return None


def items_of(node: Any) -> dict[Any, Any] | None:
    """The entries of a dict's JSON form, still encoded; None when the node is no dict."""
    if isinstance(node, dict):
        tag = tag_of(node)
        if tag is None:
            return node
        if tag == "#dict":
            return {decode(key): item for key, item in node[tag]}
    return None


def sequence_of(node: Any) -> list[Any] | None:
    """The elements of a list's or tuple's JSON form, still encoded; None when the node is neither."""
    if isinstance(node, list):
        return node
    return node["#tuple"] if tag_of(node) == "#tuple" else None


def name_of(path: Path) -> str:
    """A path as people read it: state['model']['weight']."""
    return "state" + "".join(f"[{part!r}]" for part in path)


def unsupported(value: Any, path: Path) -> StateError:
    """The error for a value that cannot be stored."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return StateError(
        f"{name_of(path)}: cannot store a {kind}; expected tensors, NumPy arrays, plain Python values, "
        "or an object with state_dict() and load_state_dict()"
    )


def _encode_dict(value: dict[Any, Any], path: Path, extend: Extend | None) -> Any:
    for key in value:
        if type(key) is not str or key.startswith("#"):
            return {"#dict": _encode_pairs(value, path, extend)}
    return {_encode_str(key, path): encode(item, (*path, key), extend) for key, item in value.items()}


def _encode_pairs(value: dict[Any, Any], path: Path, extend: Extend | None) -> list[list[Any]]:
    return [[encode(key, path), encode(item, (*path, key), extend)] for key, item in value.items()]


def _encode_int(value: int, path: Path) -> int:
    if value.bit_length() > 8192:  # Python refuses to print and parse longer ones
        raise StateError(
            f"{name_of(path)}: an integer of {value.bit_length()} bits, expected at most 8192; store it as bytes"
        )
    return value


def _encode_str(value: str, path: Path) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise StateError(
                f"{name_of(path)}: the text {value!r:.60} is not valid Unicode; store it as bytes"
            ) from None
    return value
