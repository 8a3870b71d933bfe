"""The whole benchmark."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from ckpt.errors import ConfigError
from ckpt_bench.figures import Figure
from ckpt_bench.flushing import flushes
from ckpt_bench.growth import SAVES, growth
from ckpt_bench.loading import loads
from ckpt_bench.node import BenchNode
from ckpt_bench.objects import Advance, moved_bytes, objects
from ckpt_bench.peers import Dlrover
from ckpt_bench.saving import stalls
from ckpt_bench.scale import scale

_TENSORS = 48
_WEIGHTS = (1, 2, 4, 8)  # the sizes of the tensors relative to each other
_OBJECT_BYTES = 256 << 20  # largest object in S3


def measured_bytes(size_mib: int, repeat: int, *, bucket: bool) -> int:
    """The number of bytes that a run copies, for its progress bar."""
    return moved_bytes(size_mib << 20, repeat) if bucket else sum(_part_bytes(size_mib << 20, repeat))


@contextmanager
def unwinding() -> Iterator[None]:
    """Makes SIGTERM and SIGHUP end the program as Ctrl-C does: all its files are removed."""

    def leave(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(*, size_mib: int, repeat: int, directory: Path, advance: Advance) -> list[Figure]:
    """Measures everything. It needs memory of about eight times `size_mib`, and disk space of twice `size_mib`.

    Args:
        size_mib: size of the state.
        repeat: number of measurements of each figure, of which the median is taken.
        directory: a directory on the storage to measure, for the tiers below memory.
        advance: called with the number of bytes after each part.

    Raises:
        ConfigError: the directory does not exist or cannot be written.
    """
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"{directory}: expected a directory that can be written, or s3://bucket/prefix")
    saving, loading, growing, flushing, _ = _part_bytes(size_mib << 20, repeat)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as shared,
    ):
        (ram_dir := Path(memory) / "ram").mkdir(mode=0o700)
        node = BenchNode(ram_dir, Path(shared) / "tiers")
        state = make_state(size_mib << 20)
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # there is one process
        try:
            with closing(Dlrover(size_mib << 20, Path(memory))) as dlrover:
                figures = stalls(node, state, Path(memory), repeat, dlrover)
                advance(saving)
                figures += loads(node, state, Path(memory), repeat, dlrover)
                advance(loading)
            figures += growth(node, state)
            advance(growing)
            figures += flushes(node, state, Path(shared), repeat)
            advance(flushing)
            figures += objects(Path(memory) / "s3", min(size_mib << 20, _OBJECT_BYTES), repeat, advance)
            figures += scale(Path(shared))
        finally:
            node.close()
    return figures


def _part_bytes(nbytes: int, repeat: int) -> tuple[int, ...]:
    """The approximate bytes that saving, loading, growth, flushes and S3 (two servers) copy."""
    s3 = 2 * moved_bytes(min(nbytes, _OBJECT_BYTES), repeat)
    return 7 * repeat * nbytes, 7 * repeat * nbytes, SAVES * nbytes, 6 * repeat * nbytes, s3


def make_state(nbytes: int) -> dict[str, torch.Tensor]:
    """Tensors of random numbers, together `nbytes` or slightly less."""
    weights = [_WEIGHTS[index % len(_WEIGHTS)] for index in range(_TENSORS)]
    unit = nbytes // 4 // sum(weights)
    return {f"layer{index:02d}": torch.randn(unit * weight) for index, weight in enumerate(weights)}
