"""The kinds of tensors and arrays in a state, and the layout of their bytes in memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ckpt.errors import CorruptError, StateError
from ckpt.format.boxes import Box
from ckpt.format.json_values import Path, name_of, unsupported
from ckpt.format.layout import Chunk
from ckpt.worker.lazy_torch import in_use, is_dtensor, is_tensor, torch

TENSOR, DTENSOR, ARRAY = "#tensor", "#dtensor", "#array"
TAGS = (TENSOR, DTENSOR, ARRAY)
STATE = "#state"  # the state_dict() of an object

Local = Any  # a torch.Tensor or a np.ndarray: this rank's data of a value

_PLACEMENTS = ("Replicate", "Shard", "_StridedShard")
_ARRAY_DTYPES = ("bool", *(f"{u}int{bits}" for u in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32",
                 "float64", "complex64", "complex128")  # fmt: skip


def tag_of_live(value: Any) -> str | None:
    """The tag under which a live value is stored; None if it is neither tensor nor array."""
    if is_tensor(value):
        return DTENSOR if is_dtensor(value) else TENSOR
    return ARRAY if isinstance(value, np.ndarray) else None


def is_stateful(value: Any) -> bool:
    """Whether a value has state_dict() and load_state_dict(). A class that defines them does not count."""
    if isinstance(value, type):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


def check_tensor(value: Any, path: Path) -> None:
    """Raises StateError for tensors and arrays that have no data, or whose bytes alone do not define their values."""
    if in_use() and type(value) in _plain_types():
        if (kind := _odd_kind(value)) is not None:
            raise StateError(f"{name_of(path)}: a {kind} tensor, expected a strided one with data")
    elif is_dtensor(value):
        for placement in value.placements:
            if type(placement).__name__ not in _PLACEMENTS:
                raise StateError(
                    f"{name_of(path)}: a DTensor placed by {placement}, expected {', '.join(_PLACEMENTS)}; "
                    "redistribute it before saving"
                )
        check_tensor(waited(value._local_tensor), path)
    elif is_tensor(value):
        raise unsupported(value, path)
    elif type(value) not in (np.ndarray, np.memmap):
        raise StateError(
            f"{name_of(path)}: a {type(value).__name__}, a subclass of NumPy's array, expected a plain array; save its "
            "parts as arrays, such as the data and the mask of a masked array"
        )
    elif value.dtype.name not in _ARRAY_DTYPES:
        raise StateError(f"{name_of(path)}: a NumPy array of dtype {value.dtype}, expected numbers or booleans")


def has_plain_data(value: Any) -> bool:
    """Whether a tensor is strided, with data at an address."""
    plain = value._local_tensor if is_dtensor(value) else value
    return type(plain) in _plain_types() and _odd_kind(plain) is None


def _odd_kind(value: torch.Tensor) -> str | None:
    """What a tensor of torch's own type is, if it is no strided tensor with data."""
    if value.is_nested:
        return "nested"
    if value.is_meta:
        return "meta"
    if value.is_quantized:
        return "quantized"
    return None if value.layout is torch.strided else str(value.layout)


@functools.cache
def _plain_types() -> frozenset[type]:
    return frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})


def check_target(value: Any, path: Path) -> None:
    """Raises StateError for tensors that `check_tensor` rejects, and for those that cannot be filled element by
    element."""
    check_tensor(value, path)
    local = local_part(value)
    strides, unit = (local.stride(), 1) if is_tensor(local) else (local.strides, local.itemsize)
    if _is_folded(strides, local.shape, unit) and (is_tensor(local) or local.flags.writeable):
        kind = "an expanded or unfolded tensor" if is_tensor(local) else "a view of an array"
        copy = "clone()" if is_tensor(local) else "copy()"
        raise StateError(f"{name_of(path)}: {kind}, whose elements share memory; {copy} it before load()")


def _is_folded(strides: Sequence[int], shape: Sequence[int], unit: int) -> bool:
    """Whether elements may share memory: a step along one dimension lies within the reach of smaller steps."""
    reach = unit
    for stride, n in sorted((abs(stride), n) for stride, n in zip(strides, shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (n - 1)
    return False


def waited(value: Any) -> Any:
    """The tensor; of an asynchronous collective, its result once it is complete."""
    return value.trigger_wait() if type(value).__name__ == "AsyncCollectiveTensor" else value


def local_part(value: Any) -> Local:
    """The detached tensor with this rank's data; an array is returned as it is."""
    if isinstance(value, np.ndarray):
        return value
    return waited(value._local_tensor if is_dtensor(value) else value).detach()


def dtype_name(dtype: Any) -> str:
    """The stored name of a torch or NumPy dtype."""
    name = str(dtype)
    return name.removeprefix("torch.") if name.startswith("torch.") else np.dtype(dtype).name


def torch_dtype(chunk: Chunk) -> torch.dtype:
    """The torch dtype of a chunk; raises CorruptError if the name is unknown or does not fit the chunk's size."""
    dtype = named_dtype(chunk.dtype)
    if chunk.nbytes != dtype.itemsize * chunk_box(chunk).elements:
        raise CorruptError(f"chunk {chunk.key!r:.200}: {chunk.nbytes} bytes of dtype {chunk.dtype!r:.40} {chunk.sizes}")
    return dtype


def named_dtype(name: str, *, array: bool = False) -> Any:
    """The torch dtype of a stored name, or NumPy's. Raises CorruptError if there is none."""
    dtype = (np.dtype(name) if name in _ARRAY_DTYPES else None) if array else getattr(torch, name, None)
    if not isinstance(dtype, np.dtype if array else torch.dtype):
        raise CorruptError(f"dtype {name!r:.40}: expected the name of a dtype of {'NumPy' if array else 'torch'}")
    return dtype


def check_array_dtype(chunk: Chunk) -> None:
    """Raises CorruptError if a chunk's dtype is not a known NumPy number, or does not fit the chunk's size."""
    if chunk.dtype not in _ARRAY_DTYPES or chunk.nbytes != np.dtype(chunk.dtype).itemsize * chunk_box(chunk).elements:
        raise CorruptError(f"chunk {chunk.key!r:.200}: {chunk.nbytes} bytes of dtype {chunk.dtype!r:.40} {chunk.sizes}")


def chunk_box(chunk: Chunk) -> Box:
    return Box(chunk.offsets, chunk.sizes)


def lies_flat(value: Local) -> bool:
    """Whether the bytes in memory equal the stored bytes: on the CPU, contiguous in row-major order."""
    if isinstance(value, np.ndarray):
        return value.flags.c_contiguous and value.dtype.isnative
    return value.device.type == "cpu" and value.is_contiguous() and not value.is_conj() and not value.is_neg()


def flat_bytes(value: Local) -> np.ndarray | None:
    """The bytes of a tensor or array in row-major order, without a copy; None if they are not laid out so."""
    if not lies_flat(value):
        return None
    if isinstance(value, np.ndarray):
        return value.reshape(-1).view(np.uint8)
    return np.asarray(value.detach().reshape(-1).view(torch.uint8).numpy())


def view_bytes(buffer: Any, start: int, dtype: torch.dtype, sizes: tuple[int, ...]) -> torch.Tensor:
    """A tensor over a range of a mapped buffer, without a copy."""
    elements = math.prod(sizes)
    if not elements:
        return torch.empty(sizes, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype, count=elements, offset=start).view(sizes)


def view_array(buffer: Any, start: int, dtype: str, sizes: tuple[int, ...]) -> np.ndarray:
    """An array over a range of a mapped buffer, without a copy."""
    if not math.prod(sizes):
        return np.empty(sizes, dtype)
    return np.frombuffer(buffer, dtype, math.prod(sizes), start).reshape(sizes)
