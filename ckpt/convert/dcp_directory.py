"""Reads any torch DCP directory without running code in it: its pickles may name only torch's metadata classes.

It opens only regular files of the directory itself. `ckpt.convert.confined` limits the time and memory of a read.
"""

from __future__ import annotations

import datetime
import io
import os
import pathlib
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorProperties

from ckpt.errors import ConfigError, CorruptError, StateError
from ckpt.format.atomic_files import open_regular, read_regular

MAX_METADATA_BYTES = 1 << 31  # of the metadata
_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta")),
    *((_METADATA, f"{kind}StorageMetadata") for kind in ("Bytes", "Chunk", "Tensor")),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    *((module, name) for module in ("pathlib", "pathlib._local") for name in ("Path", "PosixPath", "PurePosixPath")),
}
# Types that objects may consist of, in addition to those that torch allows in weights.
_OBJECTS = [
    *(bytearray, complex, frozenset, range, type(pathlib.Path()), pathlib.PurePosixPath),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
]


class DirectoryReader(FileSystemReader):
    """Torch's reader, except for the pickle of its metadata and the way in which files are opened."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.fs = _PlainFiles()
        self._directory = directory
        self._file = directory / ".metadata"

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Torch's metadata.

        Raises:
            ConfigError: the metadata name other classes than torch's, or are damaged.
            CorruptError: they name a file outside the directory, or bytes that a file does not have.
            OSError: the file cannot be read.
        """
        try:
            metadata = _Unpickler(io.BytesIO(read_regular(self._file, MAX_METADATA_BYTES))).load()
        except (CorruptError, OSError):
            raise
        except Exception as error:
            raise ConfigError(f"{self._file}: is not torch metadata: {str(error) or type(error).__name__}") from None
        if not isinstance(metadata, Metadata):
            raise ConfigError(f"{self._file}: holds a {type(metadata).__name__}, expected torch's Metadata")
        _check_places(self._directory, metadata.storage_data)
        metadata.storage_meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _PlainFiles(FileSystem):
    """Opens regular files of a directory, without following links."""

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[IO[bytes]]:
        with os.fdopen(open_regular(Path(path)), mode) as stream:
            yield stream


def _check_places(directory: Path, places: Any) -> None:
    """Raises CorruptError unless every place is a range of bytes in a regular file of the directory."""
    if not isinstance(places, Mapping):
        raise CorruptError(f"{directory / '.metadata'}: has no places of the data; the checkpoint was never completed")
    sizes: dict[str, int] = {}
    for place in places.values():
        name, offset, length = place.relative_path, place.offset, place.length
        if not isinstance(name, str) or name != os.path.basename(name) or name in ("", ".", ".."):
            raise CorruptError(f"{directory / '.metadata'}: names the file {name!r:.100}, expected one beside it")
        if name not in sizes:
            sizes[name] = size_of(directory / name)
        if any(type(n) is not int or n < 0 for n in (offset, length)) or offset + length > sizes[name]:
            where = f"bytes {offset!r:.20} to {offset!r:.20} + {length!r:.20}"
            raise CorruptError(f"{directory / name}: got {sizes[name]} bytes, expected {where}; copy it again")


def size_of(file: Path) -> int:
    """The size of a regular file. Raises CorruptError for anything else, and OSError."""
    descriptor = open_regular(file)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


class _Properties(TensorProperties):
    """Reads the properties that a newer torch has written. torch 2.15 added the strides, which older ones refuse."""

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state[: len(TensorProperties().__getstate__())])
        self.__class__ = TensorProperties


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == (_METADATA, TensorProperties.__name__):
            return _Properties
        if (module, name) in _CLASSES:
            return super().find_class(module, name)
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        if (module, name) == ("builtins", "getattr"):  # some versions of Python pickle enum members so
            return _member
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is not one of torch's metadata classes")


def _member(kind: Any, name: str) -> Any:
    if getattr(kind, "__name__", None) != "_MEM_FORMAT_ENCODING":
        raise pickle.UnpicklingError(f"it asks for an attribute {name!r:.40}")
    return kind[name]


def load_object(name: str, data: Any) -> Any:
    """Loads an object that torch has pickled.

    Raises:
        StateError: it contains more than tensors and plain values. The message names it.
    """
    try:
        with torch.serialization.safe_globals(_OBJECTS):
            return torch.load(data, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        what = f"only the code it names could make ({named[1]})" if named else "torch.load(weights_only=True) refuses"
        raise StateError(f"{name}: holds an object that {what}; save it again as tensors and plain values") from None
