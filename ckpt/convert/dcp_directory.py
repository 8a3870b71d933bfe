"""Reads any torch DCP directory without running code in it: its pickles may name only torch's metadata classes."""

from __future__ import annotations

import datetime
import io
import pathlib
import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from ckpt.errors import ConfigError, StateError

_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = {
    *((_METADATA, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties")),
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
    """Torch's reader, except for the pickle of its metadata."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._file = directory / ".metadata"

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Torch's metadata.

        Raises:
            ConfigError: the metadata name other classes than torch's, or are damaged.
            OSError: the file cannot be read.
        """
        try:
            metadata = _Unpickler(io.BytesIO(self._file.read_bytes())).load()
        except OSError:
            raise
        except Exception as error:
            raise ConfigError(f"{self._file}: is not torch metadata: {error}") from None
        if not isinstance(metadata, Metadata):
            raise ConfigError(f"{self._file}: holds a {type(metadata).__name__}, expected torch's Metadata")
        metadata.storage_meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
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
