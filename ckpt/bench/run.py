"""The whole benchmark."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch

from ckpt.bench.draining import drains
from ckpt.bench.figures import Figure
from ckpt.bench.growth import growth
from ckpt.bench.loading import loads
from ckpt.bench.node import BenchNode
from ckpt.bench.objects import objects
from ckpt.bench.saving import stalls
from ckpt.bench.scale import scale

_TENSORS = 48  # of four sizes, as a model with its optimizer has them
_WEIGHTS = (1, 2, 4, 8)
_OBJECT_BYTES = 256 << 20  # at most


def run(*, size_mib: int, repeat: int, directory: Path) -> list[Figure]:
    """Measures everything; needs about six times `size_mib` of memory and twice that of disk.

    Args:
        size_mib: of the state.
        repeat: times that each figure is taken; the median counts.
        directory: where the tiers below memory are to be; on the storage to measure.
    """
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as shared,
    ):
        (ram_dir := Path(memory) / "ram").mkdir(mode=0o700)
        node = BenchNode(ram_dir, Path(shared) / "tiers")
        state = make_state(size_mib << 20)
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # so it is: one process
        try:
            figures = stalls(node, state, Path(memory), repeat)
            figures += loads(node, state, Path(memory), repeat)
            figures += growth(node, state)
            figures += drains(node, state, Path(shared), repeat)
            figures += objects(Path(memory) / "s3", min(size_mib << 20, _OBJECT_BYTES), repeat)
            figures += scale(Path(shared))
        finally:
            node.close()
    return figures


def make_state(nbytes: int) -> dict[str, torch.Tensor]:
    """Tensors of random numbers, `nbytes` together, or a little less."""
    weights = [_WEIGHTS[index % len(_WEIGHTS)] for index in range(_TENSORS)]
    unit = nbytes // 4 // sum(weights)
    return {f"layer{index:02d}": torch.randn(unit * weight) for index, weight in enumerate(weights)}
