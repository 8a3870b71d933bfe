"""Checksums of tensors on a GPU: the table that the kernel works through, and on a machine with a GPU the kernel."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckpt.worker.save import gpu_checksums
from ckpt.worker.save.gpu_checksums import GpuChecksums, checksum, table_of

BYTES = 3 << 20


def by_the_table(memory: np.ndarray, tensors: list[torch.Tensor]) -> tuple[list[int], list[int]]:
    """What the kernel computes, and the numbers of the tensors that it leaves out."""
    places = [(tensor.data_ptr(), tensor.nbytes, tensor.is_contiguous()) for tensor in tensors]
    table, apart = table_of(places)
    assert table.dtype == np.int64 and table.shape == (len(table), 3)
    sums = [0] * len(tensors)
    for address, nbytes, number in table.tolist():
        assert address % 8 == 0 and memory.ctypes.data <= address and nbytes <= gpu_checksums._PART_BYTES
        sums[number] = (sums[number] + sum_of_words(ctypes.string_at(address, nbytes))) % 2**64
    return sums, apart


def sum_of_words(data: bytes) -> int:
    """The sum of a tensor's bytes as words of 8, the last one filled up with zeros."""
    return int(np.frombuffer(data.ljust(-(-len(data) // 8) * 8, b"\0"), dtype=np.uint64).sum(dtype=np.uint64))


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 1, 5, 8, 4096, 1 << 20, BYTES - 64])), max_size=6))
def test_the_table_has_each_byte_once_and_names_what_is_left_out(cuts: list[tuple[int, int]]) -> None:
    memory = np.random.default_rng(1).integers(0, 256, BYTES, dtype=np.uint8)
    whole = torch.from_numpy(memory)
    sums, apart = by_the_table(memory, [whole[start : start + nbytes] for start, nbytes in cuts])
    first = memory.ctypes.data
    assert apart == [number for number, (start, nbytes) in enumerate(cuts) if nbytes and (first + start) % 8]
    for number, (start, nbytes) in enumerate(cuts):
        if number not in apart:
            assert sums[number] == sum_of_words(memory[start : start + nbytes].tobytes()), (start, nbytes)


def test_a_tensor_that_is_not_contiguous_is_left_out() -> None:
    table, apart = table_of([(64, 800, True), (1024, 800, False)])
    assert table.tolist() == [[64, 800, 0]] and apart == [1]


def test_a_torch_that_compiles_no_kernel_sums_each_tensor(caplog: pytest.LogCaptureFixture) -> None:
    tensors = [torch.arange(9.0), torch.ones(3, dtype=torch.bfloat16)]
    checksums = GpuChecksums(torch.device("cpu"))
    with caplog.at_level("INFO"):
        found = checksums.of(tensors)
        checksums.of(tensors)
    assert found.tolist() == [checksum(tensor).item() for tensor in tensors]
    assert caplog.text.count("as torch compiles none for all") == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: the kernel runs nowhere else")
def test_the_kernel_sees_every_bit_of_every_tensor() -> None:
    device = torch.device("cuda", 0)
    checksums = GpuChecksums(device)
    generator = torch.Generator().manual_seed(1)
    tensors = []
    for kind in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.complex64):
        for count in (0, 1, 3, 1000, 300_001):
            raw = torch.randint(0, 255, (count * kind.itemsize,), dtype=torch.uint8, generator=generator)
            tensors.append(raw.to(device).view(kind))
    tensors += [tensors[-1][1:], torch.ones(64, 32, device=device).t(), torch.tensor(3.0, device=device)]
    before = checksums.of(tensors)
    assert checksums._kernel is not None and torch.equal(checksums.of(tensors), before)
    for number, tensor in enumerate(tensors):
        if tensor.numel() and tensor.is_contiguous():
            raw = tensor.view(-1).view(torch.uint8)
            for place in {0, raw.numel() // 2, raw.numel() - 1}:
                raw[place] ^= 1
                assert checksums.of(tensors)[number] != before[number], (number, place)
                raw[place] ^= 1
    assert torch.equal(checksums.of(tensors), before)
