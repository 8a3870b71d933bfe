"""Checksums of tensors on a GPU. Where torch can compile a kernel at run time, one launch computes them all.

A save of a large model has thousands of tensors. Thousands of launches take longer than the sums.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from ckpt.worker.lazy_torch import torch

_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}  # by number of bytes
_PART_BYTES = 1 << 20  # for each block of threads
_THREADS = 256
_SOURCE = """
extern "C" __global__ void sum_words(const unsigned long long* parts, unsigned long long* sums)
{
    // parts: for each block an address, the number of bytes there, and the index of the sum
    const unsigned long long* part = parts + 3 * (unsigned long long)blockIdx.x;
    const unsigned long long* words = (const unsigned long long*)part[0];
    unsigned long long count = part[1] / 8, sum = 0;
    for (unsigned long long i = threadIdx.x; i < count; i += blockDim.x)
        sum += words[i];
    if (threadIdx.x < part[1] % 8)  // the last word is not whole
        sum += (unsigned long long)((const unsigned char*)(words + count))[threadIdx.x] << (8 * threadIdx.x);
    __shared__ unsigned long long sums_of_threads[256];
    sums_of_threads[threadIdx.x] = sum;
    for (unsigned int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums_of_threads[threadIdx.x] += sums_of_threads[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        atomicAdd(sums + part[2], sums_of_threads[0]);
}
"""

log = logging.getLogger(__name__)

PlaceInMemory = tuple[int, int, bool]
"""Where a tensor is: its address, its bytes, and whether it is contiguous."""


class GpuChecksums:
    """Computes checksums of tensors on one GPU, in the current stream.

    The checksum of a tensor is the sum of its memory as integers; the sum wraps.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_compiled = False
        self._kernel: Any = None  # None also where torch cannot compile one
        self._places: list[PlaceInMemory] = []  # of the tensors in the table
        self._table: torch.Tensor | None = None  # the kernel's `parts`
        self._apart: list[int] = []  # the tensors that the kernel cannot sum

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Enqueues the computation of each tensor's checksum: int64, [tensors]. Raises RuntimeError."""
        if not self._is_compiled:
            self._kernel, self._is_compiled = _compiled(self._device), True
        if self._kernel is None:
            return torch.stack([checksum(tensor) for tensor in tensors])
        places = [(tensor.data_ptr(), tensor.nbytes, tensor.is_contiguous()) for tensor in tensors]
        if places != self._places:
            parts, self._apart = table_of(places)
            table = torch.from_numpy(parts).pin_memory().to(self._device, non_blocking=True) if len(parts) else None
            self._table, self._places = table, places
        sums = torch.zeros(len(tensors), dtype=torch.int64, device=self._device)
        if self._table is not None:
            stream = torch.cuda.current_stream(self._device)
            self._table.record_stream(stream)
            grid = (len(self._table), 1, 1)
            self._kernel(grid=grid, block=(_THREADS, 1, 1), args=[self._table, sums], stream=stream)
        for number in self._apart:
            sums[number] = checksum(tensors[number])
        return sums


def table_of(places: Sequence[PlaceInMemory]) -> tuple[np.ndarray, list[int]]:
    """Cuts tensors into parts for the kernel.

    Returns:
        The parts: int64, [parts, 3], each an address, a number of bytes, and the tensor's number. And the numbers of
        the tensors that the kernel cannot sum: they are not contiguous, or no words begin at their address.
    """
    parts, apart = [], []
    for number, (address, nbytes, is_contiguous) in enumerate(places):
        if address % 8 or not is_contiguous:
            apart.append(number)
            continue
        for start in range(0, nbytes, _PART_BYTES):
            parts.append((address + start, min(_PART_BYTES, nbytes - start), number))
    return np.array(parts, dtype=np.uint64).reshape(-1, 3).view(np.int64), apart


def checksum(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's checksum: one number, on the tensor's device.

    The integers are as wide as possible. A sum of another width would need a converted copy.
    """
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    nbytes = tensor.itemsize
    if tensor.numel() and tensor.is_contiguous() and (tensor.nbytes | tensor.storage_offset() * nbytes) % 8 == 0:
        tensor, nbytes = tensor.view(-1), 8
    integer = getattr(torch, _INTEGERS[nbytes])
    return tensor.view(integer).sum(dtype=integer).long()


def _compiled(device: torch.device) -> Any:
    """The kernel for a GPU; None if this torch cannot compile it."""
    try:
        with torch.cuda.device(device):
            return torch.cuda._compile_kernel(_SOURCE, "sum_words")  # since torch 2.8, with NVRTC, which torch loads
    except Exception as error:
        log.info("a save launches a kernel for each tensor's checksum, as torch compiles none for all: %r", error)
        return None
