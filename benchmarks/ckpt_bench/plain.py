"""The floor that everything is measured against: what the machine does with the same bytes and no checkpoint at all."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch

WRITE_BYTES = 4 << 20


class MappedCopy:
    """A file in memory, mapped, with room for some tensors; copying them there and back is the floor."""

    def __init__(self, path: Path, tensors: list[torch.Tensor]) -> None:
        nbytes = sum(tensor.nbytes for tensor in tensors)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
            self._memory = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
        self._views, start = [], 0
        for tensor in tensors:
            view = torch.frombuffer(self._memory, dtype=tensor.dtype, count=tensor.numel(), offset=start)
            self._views.append(view.view(tensor.shape))
            start += tensor.nbytes

    def store(self, tensors: list[torch.Tensor]) -> None:
        for view, tensor in zip(self._views, tensors, strict=True):
            view.copy_(tensor)

    def fetch(self, tensors: list[torch.Tensor]) -> None:
        for view, tensor in zip(self._views, tensors, strict=True):
            tensor.copy_(view)


def sequential_write(path: Path, nbytes: int) -> str:
    """Writes a file as `fio --rw=write --bs=4M --direct=1 --end_fsync=1` does; says whether the disk took O_DIRECT."""
    buffer = mmap.mmap(-1, WRITE_BYTES)  # aligned to a page, as O_DIRECT wants it
    buffer.write(os.urandom(WRITE_BYTES))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    how = "direct"
    try:
        descriptor = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:  # tmpfs has none
        descriptor, how = os.open(path, flags, 0o600), "buffered"
    try:
        for start in range(0, nbytes, WRITE_BYTES):
            os.pwrite(descriptor, buffer, start)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return how
