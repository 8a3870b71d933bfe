"""Copying and verifying in one pass: every byte arrives, and every bad block is named."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt.format.checksums import BLOCK_BYTES, checksums
from ckpt.worker.load.verified_copy import Region, copy_verified

SIZE = 3 * BLOCK_BYTES + 12_345
CONTENT = np.random.default_rng(1).integers(0, 256, SIZE, np.uint8)
EXPECTED = checksums(CONTENT.data)


@settings(deadline=None, max_examples=20)
@given(cuts=st.lists(st.integers(0, SIZE), min_size=2, max_size=12), threads=st.integers(1, 3))
def test_regions_arrive_whole_wherever_they_lie(cuts: list[int], threads: int) -> None:
    edges = sorted(cuts)
    spans = list(zip(edges[::2], edges[1::2], strict=False))
    regions = [Region(start=a, target=np.zeros(b - a, np.uint8)) for a, b in spans]
    assert copy_verified(CONTENT.data, EXPECTED, range(len(EXPECTED)), regions, threads) == []
    assert all(np.array_equal(r.target, CONTENT[a:b]) for r, (a, b) in zip(regions, spans, strict=True))


@pytest.mark.parametrize("threads", [1, 3])
def test_damaged_blocks_are_named(threads: int) -> None:
    damaged = CONTENT.copy()
    damaged[[5, 2 * BLOCK_BYTES, SIZE - 1]] ^= 1
    assert copy_verified(damaged.data, EXPECTED, range(4), [], threads) == [0, 2, 3]
    assert copy_verified(damaged.data, EXPECTED, [1, 2], [], threads) == [2]
    assert copy_verified(damaged.data, EXPECTED[:-1], [1], [], threads) == [1]
