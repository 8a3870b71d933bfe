"""The whole benchmark."""

from __future__ import annotations

import logging
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
from ckpt_bench.objects import Advance, moved_bytes, objects, objects_at
from ckpt_bench.peers import Dlrover
from ckpt_bench.saving import stalls
from ckpt_bench.scale import scale

_TENSORS = 48  # of four sizes, as a model with its optimizer has them
_WEIGHTS = (1, 2, 4, 8)
_OBJECT_BYTES = 256 << 20  # at most


def measured_bytes(size_mib: int, repeat: int, *, bucket: bool) -> int:
    """What a run moves in all, for a bar."""
    return moved_bytes(size_mib << 20, repeat) if bucket else sum(_part_bytes(size_mib << 20, repeat))


@contextmanager
def unwinding() -> Iterator[None]:
    """A SIGTERM or SIGHUP meanwhile ends the program as Ctrl-C does: what it has made is removed."""

    def leave(number: int, frame: Any) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_bucket(url: str, *, size_mib: int, repeat: int, advance: Advance) -> list[Figure]:
    """Measures what goes to and from a bucket; see `objects_at`."""
    return objects_at(url, size_mib << 20, repeat, advance)


def run(*, size_mib: int, repeat: int, directory: Path, advance: Advance) -> list[Figure]:
    """Measures everything; needs about eight times `size_mib` of memory and twice that of disk.

    Args:
        size_mib: of the state.
        repeat: times that each figure is taken; the median counts.
        directory: where the tiers below memory are to be; on the storage to measure.
        advance: told of every so many bytes moved.

    Raises:
        ConfigError: nothing can be made in the directory.
    """
    if not directory.is_dir() or not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"{directory}: expected a directory that can be written, or s3://bucket/prefix")
    _log_warnings_only()
    saving, loading, growing, flushing, _ = _part_bytes(size_mib << 20, repeat)
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as shared,
    ):
        (ram_dir := Path(memory) / "ram").mkdir(mode=0o700)
        node = BenchNode(ram_dir, Path(shared) / "tiers")
        state = make_state(size_mib << 20)
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # so it is: one process
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
    """About what saving, loading, growth, flushes and S3 (on two servers) move."""
    s3 = 2 * moved_bytes(min(nbytes, _OBJECT_BYTES), repeat)
    return 7 * repeat * nbytes, 7 * repeat * nbytes, SAVES * nbytes, 6 * repeat * nbytes, s3


def _log_warnings_only() -> None:
    """The saves are hundreds."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    logging.getLogger("ckpt").addHandler(handler)


def make_state(nbytes: int) -> dict[str, torch.Tensor]:
    """Tensors of random numbers, `nbytes` together, or a little less."""
    weights = [_WEIGHTS[index % len(_WEIGHTS)] for index in range(_TENSORS)]
    unit = nbytes // 4 // sum(weights)
    return {f"layer{index:02d}": torch.randn(unit * weight) for index, weight in enumerate(weights)}
