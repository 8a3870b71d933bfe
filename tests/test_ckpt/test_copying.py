"""Copies by several threads: every byte arrives, nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ckpt.native.memcpy import Move, ParallelCopy, threads_per_rank
from ckpt.worker.tensors import lies_flat

SIZES = (0, 1, 63, 4096, (4 << 20) - 1, (9 << 20) + 7)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_byte_arrives_and_no_other_changes(threads: int) -> None:
    sources = [np.random.default_rng(size).integers(1, 256, size, np.uint8) for size in SIZES]
    targets = [np.zeros(size + 64, np.uint8) for size in SIZES]
    copies = ParallelCopy(threads)
    for _ in range(2):  # the threads of the first run serve the second
        copies.run([Move(target=t.ctypes.data, source=s.ctypes.data, nbytes=s.size)
                    for t, s in zip(targets, sources, strict=True)])  # fmt: skip
    copies.close()
    assert all(np.array_equal(t[: s.size], s) for t, s in zip(targets, sources, strict=True))
    assert not any(t[s.size :].any() for t, s in zip(targets, sources, strict=True))


def test_a_rank_has_its_share_of_the_cores_and_never_none() -> None:
    assert threads_per_rank(1) >= threads_per_rank(2) >= threads_per_rank(10_000) == 1


def test_only_bytes_that_lie_as_they_are_stored_are_copied_as_bytes() -> None:
    matrix = torch.arange(6.0).view(2, 3)
    assert lies_flat(matrix) and lies_flat(matrix[1])
    assert not lies_flat(matrix.t()) and not lies_flat(matrix[:, :2]) and not lies_flat(matrix[0, 0].expand(4))
    assert not lies_flat(torch.ones(2, dtype=torch.complex64).conj())
