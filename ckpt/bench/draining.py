"""Bytes per second on the way to the shared tier, beside a plain sequential write to the same directory."""

from __future__ import annotations

from pathlib import Path

import torch

from ckpt.bench.figures import Figure, median, timed_s
from ckpt.bench.node import DRAIN_EVERY, BenchNode
from ckpt.bench.plain import sequential_write


def drains(node: BenchNode, state: dict[str, torch.Tensor], shared: Path, repeat: int) -> list[Figure]:
    """From the commit in memory to the commit in the shared tier: data, fsync, manifest."""
    nbytes = sum(tensor.nbytes for tensor in state.values())
    ckpt = node.start()
    ours, floor, how = [], [], ""
    for turn in range(1, repeat + 1):
        step = turn * DRAIN_EVERY
        ckpt.save(step, state)
        event = node.wait_for("shared", step)
        ours.append(event["bytes"] / 1e6 / event["seconds"])

        def write() -> None:
            nonlocal how
            how = sequential_write(shared / "plain", nbytes)

        floor.append(nbytes / 1e6 / timed_s(write))
        (shared / "plain").unlink()
    peers = {f"sequential {how} write": median(floor)}
    return [Figure(name="drain to the shared tier", value=median(ours), unit="MB/s", peers=peers)]
