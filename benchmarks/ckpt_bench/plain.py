"""Plain copies and writes of the same bytes, with which the benchmark compares checkpoints."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch

WRITE_BYTES = 4 << 20


class MappedCopy:
    """A mapped file in memory that is as large as some tensors."""

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
        """Copy the tensors to the file."""
        for view, tensor in zip(self._views, tensors, strict=True):
            view.copy_(tensor)

    def fetch(self, tensors: list[torch.Tensor]) -> None:
        """Copy the file to the tensors."""
        for view, tensor in zip(self._views, tensors, strict=True):
            tensor.copy_(view)


def sequential_write(path: Path, nbytes: int) -> str:
    """Writes a file as `fio --rw=write --bs=4M --direct=1 --end_fsync=1` does.

    Returns "direct", or "buffered" if the file system has no O_DIRECT.
    """
    buffer = mmap.mmap(-1, WRITE_BYTES)  # aligned to a page, as O_DIRECT requires
    buffer.write(os.urandom(WRITE_BYTES))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    how = "direct"
    try:
        descriptor = os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError:  # for example on tmpfs
        descriptor, how = os.open(path, flags, 0o600), "buffered"
    try:
        for start in range(0, nbytes, WRITE_BYTES):
            os.pwrite(descriptor, buffer, start)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return how
