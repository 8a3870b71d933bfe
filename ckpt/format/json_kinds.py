"""Python types that JSON lacks, each stored as a tag and plain JSON. The list is closed: nothing is unpickled.

The class of an enum or a named tuple is looked up in the modules that the process has already imported. Nothing is
imported for it. Other classes are refused.
"""

from __future__ import annotations

import base64
import io
import pathlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum, Flag
from importlib import import_module
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How values of one type are stored. Both functions raise ValueError for values that they cannot convert."""

    tag: str
    write: Callable[[Any], Any]  # to plain JSON
    read: Callable[[Any], Any]  # from plain JSON; may also raise LookupError, TypeError or ArithmeticError


def kind_of(value: Any) -> Kind | None:
    """The kind of a value; None if its type has none."""
    kind = type(value)
    if found := _BY_TYPE.get(kind):
        return found
    if isinstance(value, Enum):
        return _ENUM
    if isinstance(value, np.generic):
        return _SCALAR if value.dtype.kind in "biufcmM" else None
    return _BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")


def class_name(kind: type) -> list[str]:
    """The module and name of a class. Raises ValueError if the class cannot be found by them."""
    name = [kind.__module__, kind.__qualname__]
    try:
        if find_class(*name) is kind:
            return name
    except LookupError:
        pass
    raise ValueError(f"its class {'.'.join(name)} is not found under that name; define it at the top of a module")


def find_class(module: str, qualname: str) -> type:
    """A class in a module that has been imported. Raises LookupError if there is none."""
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, type):
        raise LookupError(f"class {module}.{qualname} is not known here; import its module first")
    return found


def _read_enum(content: Any) -> Any:
    module, qualname, name, value = content
    kind = find_class(module, qualname)
    if not issubclass(kind, Enum):
        raise ValueError(f"{module}.{qualname} is not an enum")
    return kind[name] if name is not None else kind(value)


def _write_enum(value: Any) -> list[Any]:
    return [*class_name(type(value)), *((None, value.value) if isinstance(value, Flag) else (value.name, None))]


def _write_zone(zone: Any) -> Any:
    """The name of a time zone, or its fixed offset from UTC."""
    if zone is None or (type(zone) is ZoneInfo and zone.key):
        return zone and zone.key
    if type(zone) is not timezone:
        raise ValueError(f"a time zone of type {type(zone).__name__}, expected zoneinfo's or a fixed offset")
    offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
    return [_write_span(offset), *name]


def _read_zone(content: Any) -> Any:
    if isinstance(content, list):
        return timezone(timedelta(*content[0]), *content[1:])
    return content if content is None else ZoneInfo(content)


def _write_span(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _write_moment(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _write_zone(value.tzinfo)]


def _read_moment(kind: Any) -> Callable[[Any], Any]:
    return lambda content: kind.fromisoformat(content[0]).replace(fold=content[1], tzinfo=_read_zone(content[2]))


def _write_bytes(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


def _read_bytes(content: Any) -> bytes:
    return base64.b64decode(content, validate=True)


def _read_file(content: Any) -> io.BytesIO:
    file = io.BytesIO(_read_bytes(content[0]))
    file.seek(content[1])
    return file


def _read_path(content: Any) -> pathlib.PurePath:
    name, text = content
    if name not in ("Path", "PurePosixPath", "PureWindowsPath"):
        raise ValueError(f"not a kind of path: {name!r:.40}")
    path: pathlib.PurePath = getattr(pathlib, name)(text)
    return path


def _write_path(value: pathlib.PurePath) -> list[str]:
    text = str(value)
    text.encode()  # UnicodeEncodeError is a ValueError: the name is not valid Unicode
    return ["Path" if isinstance(value, pathlib.Path) else type(value).__name__, text]


def _read_dtype(content: Any) -> Any:
    torch = import_module("torch")
    if not isinstance(found := getattr(torch, content, None), torch.dtype):
        raise ValueError(f"not a torch dtype: {content!r:.40}")
    return found


_ENUM = Kind(tag="#enum", write=_write_enum, read=_read_enum)
_SCALAR = Kind(
    tag="#scalar",
    write=lambda value: [value.dtype.str, _write_bytes(value.tobytes())],
    read=lambda content: np.frombuffer(_read_bytes(content[1]), np.dtype(content[0]))[0],
)
_PATH = Kind(tag="#path", write=_write_path, read=_read_path)
_BY_TYPE = {
    bytes: Kind(tag="#bytes", write=_write_bytes, read=_read_bytes),
    bytearray: Kind(tag="#bytearray", write=_write_bytes, read=lambda content: bytearray(_read_bytes(content))),
    io.BytesIO: Kind(
        tag="#bytesio", write=lambda value: [_write_bytes(value.getvalue()), value.tell()], read=_read_file
    ),
    complex: Kind(tag="#complex", write=lambda value: [value.real, value.imag], read=lambda content: complex(*content)),
    range: Kind(
        tag="#range", write=lambda value: [value.start, value.stop, value.step], read=lambda content: range(*content)
    ),
    date: Kind(tag="#date", write=date.isoformat, read=date.fromisoformat),
    time: Kind(tag="#time", write=_write_moment, read=_read_moment(time)),
    datetime: Kind(tag="#datetime", write=_write_moment, read=_read_moment(datetime)),
    timedelta: Kind(tag="#timedelta", write=_write_span, read=lambda content: timedelta(*content)),
    timezone: Kind(tag="#timezone", write=_write_zone, read=_read_zone),
    ZoneInfo: Kind(tag="#timezone", write=_write_zone, read=_read_zone),
    pathlib.PurePosixPath: _PATH,
    pathlib.PureWindowsPath: _PATH,
    type(pathlib.Path()): _PATH,
}
_BY_NAME = {  # torch's types by name, because this module does not import torch
    "torch.Size": Kind(tag="#torch.size", write=list, read=lambda content: import_module("torch").Size(content)),
    "torch.device": Kind(tag="#torch.device", write=str, read=lambda content: import_module("torch").device(content)),
    "torch.dtype": Kind(tag="#torch.dtype", write=lambda value: str(value).removeprefix("torch."), read=_read_dtype),
}
_BY_TAG = {kind.tag: kind for kind in (*_BY_TYPE.values(), *_BY_NAME.values(), _ENUM, _SCALAR)}


def kind_of_tag(tag: str) -> Kind | None:
    """The kind that is stored under a tag; None if there is none."""
    return _BY_TAG.get(tag)
