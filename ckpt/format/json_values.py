"""Converts Python values to JSON and back. Each value comes back exactly, or is refused.

Plain JSON values are stored unchanged, also dicts with ordinary string keys. Everything else is an object with one
entry, whose key starts with '#'. Containers, whose elements may be anything:

    {"#tuple": [...]}  {"#namedtuple": [module, name, [...]]}  {"#deque": [maximum, [...]]}
    {"#dict": [[key, value], ...]}  {"#defaultdict": [factory, [[key, value], ...]]}
    {"#set": [...]}  {"#frozenset": [...]}  {"#counter": [[key, count], ...]}

The other kinds are in ckpt.format.json_kinds. Callers can add tags for data that is stored elsewhere, such as tensors,
with the `extend` function. An OrderedDict comes back as a dict, an instance of a subclass of str as a str.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from ckpt.errors import CorruptError, StateError
from ckpt.format.json_kinds import class_name, find_class, kind_of, kind_of_tag

Path = tuple[Any, ...]
Extend = Callable[[Any, Path], Any]
Decode = Callable[[str, Any], Any]

_FACTORIES = {kind.__name__: kind for kind in (bool, bytes, dict, float, int, list, set, str, tuple, Counter, deque)}


def encode(value: Any, path: Path = (), extend: Extend | None = None) -> Any:
    """The JSON form of a value.

    Args:
        path: path of the value in the state, for messages.
        extend: called with every value of another kind; returns its JSON form or raises StateError.

    Raises:
        StateError: a value cannot be stored. The message names its path.
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
        return _encode_all(value, path, extend)
    if kind is tuple:
        return {"#tuple": _encode_all(value, path, extend)}
    if kind is set or kind is frozenset:
        return {f"#{kind.__name__}": [encode(item, path) for item in value]}
    if kind is Counter:
        return {"#counter": _encode_pairs(value, path, None)}
    if kind is deque:
        return {"#deque": [value.maxlen, _encode_all(value, path, extend)]}
    try:
        if kind is defaultdict:
            return {"#defaultdict": [_factory_name(value), _encode_pairs(value, path, extend)]}
        if is_named_tuple(value):
            return {"#namedtuple": [*class_name(kind), _encode_all(value, path, extend)]}
        if found := kind_of(value):
            return {found.tag: found.write(value)}
    except ValueError as error:
        raise StateError(f"{name_of(path)}: cannot store a {kind.__name__}: {error}") from None
    if isinstance(value, str):
        return _encode_str(str.__str__(value), path)
    if extend is None:
        raise unsupported(value, path)
    return extend(value, path)


def decode(node: Any, resolve: Decode | None = None) -> Any:
    """Converts a JSON form back to its value.

    Args:
        node: what `encode` returned, after a round trip through JSON.
        resolve: called with every other tag and its content.

    Raises:
        CorruptError: the form is malformed, or names a class that this process has not imported.
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
        if (elements := sequence_of(node)) is not None:
            return container(node, [decode(item, resolve) for item in elements])
        if (entries := items_of(node)) is not None:
            return container(node, {key: decode(item, resolve) for key, item in entries.items()})
        if tag == "#set":
            return {decode(item) for item in content}
        if tag == "#frozenset":
            return frozenset(decode(item) for item in content)
        if tag == "#counter":
            return Counter({decode(key): decode(count) for key, count in content})
        if kind := kind_of_tag(tag):
            return kind.read(content)
    except _MALFORMED as error:
        raise CorruptError(f"value: malformed {tag}: {error!s:.300}") from None
    if resolve is None:
        raise CorruptError(f"value: unknown tag {tag!r:.40}")
    return resolve(tag, content)


# Raised by the kinds' constructors for invalid contents; binascii's error is a ValueError.
_MALFORMED = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RuntimeError, OSError)


def container(node: Any, content: Any) -> Any:
    """The dict or sequence of a JSON form with other content, which is a dict or a list of elements."""
    tag = tag_of(node)
    if tag == "#tuple":
        return tuple(content)
    if tag == "#deque":
        return deque(content, node[tag][0])
    if tag == "#defaultdict":
        name = node[tag][0]
        return defaultdict(None if name is None else _FACTORIES[name], content)
    if tag == "#namedtuple":
        module, name, _ = node[tag]
        if not is_named_tuple_class(kind := find_class(module, name)):
            raise ValueError(f"{module}.{name} is not a named tuple")
        return kind._make(content)  # type: ignore[attr-defined]
    return content


def like(live: Any, content: Iterable[Any]) -> Any:
    """A tuple of the type of `live` with other elements."""
    return type(live)._make(content) if is_named_tuple(live) else tuple(content)


def is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and is_named_tuple_class(type(value))


def is_named_tuple_class(kind: type) -> bool:
    return issubclass(kind, tuple) and isinstance(getattr(kind, "_fields", None), tuple) and hasattr(kind, "_make")


def tag_of(node: Any) -> str | None:
    """The tag of a tagged node; None if the node is plain JSON."""
    if isinstance(node, dict) and len(node) == 1:
        key = next(iter(node))
        if key.startswith("#"):
            return key
    return None


def items_of(node: Any) -> dict[Any, Any] | None:
    """The entries of a dict's JSON form, still encoded; None if the node is not a dict."""
    if isinstance(node, dict):
        tag = tag_of(node)
        if tag is None:
            return node
        if tag in ("#dict", "#defaultdict"):
            try:
                return {decode(key): item for key, item in (node[tag] if tag == "#dict" else node[tag][1])}
            except (TypeError, ValueError, LookupError) as error:
                raise CorruptError(f"value: malformed {tag}: {error}") from None
    return None


def sequence_of(node: Any) -> list[Any] | None:
    """The elements of the JSON form of a list, tuple or deque, still encoded; None for other nodes."""
    if isinstance(node, list):
        return node
    tag = tag_of(node)
    if tag not in ("#tuple", "#namedtuple", "#deque"):
        return None
    content = node[tag]
    elements = content if tag == "#tuple" or not isinstance(content, list) or not content else content[-1]
    if not isinstance(elements, list):
        raise CorruptError(f"value: malformed {tag}: expected a list of elements")
    return elements


def name_of(path: Path) -> str:
    """A path as shown in messages: state['model']['weight']."""
    return "state" + "".join(f"[{part!r}]" for part in path)


def unsupported(value: Any, path: Path) -> StateError:
    kind = value if isinstance(value, type) else type(value)
    what = f"{'the class' if kind is value else 'a'} {kind.__module__}.{kind.__qualname__}"
    return StateError(
        f"{name_of(path)}: cannot store {what}; expected tensors, NumPy arrays, plain Python values, "
        "or an object with state_dict() and load_state_dict()"
    )


def _encode_dict(value: dict[Any, Any], path: Path, extend: Extend | None) -> Any:
    for key in value:
        if type(key) is not str or key.startswith("#"):
            return {"#dict": _encode_pairs(value, path, extend)}
    return {_encode_str(key, path): encode(item, (*path, key), extend) for key, item in value.items()}


def _encode_all(value: Iterable[Any], path: Path, extend: Extend | None) -> list[Any]:
    return [encode(item, (*path, i), extend) for i, item in enumerate(value)]


def _factory_name(value: defaultdict[Any, Any]) -> str | None:
    name = getattr(value.default_factory, "__name__", None)
    if value.default_factory is not None and _FACTORIES.get(str(name)) is not value.default_factory:
        raise ValueError(
            f"its factory is {name or value.default_factory!r:.60}, expected {', '.join(_FACTORIES)} or None"
        )
    return name


def _encode_pairs(value: dict[Any, Any], path: Path, extend: Extend | None) -> list[list[Any]]:
    return [[encode(key, path), encode(item, (*path, key), extend)] for key, item in value.items()]


def _encode_int(value: int, path: Path) -> int:
    if value.bit_length() > 8192:  # Python refuses to print and parse longer integers
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
