"""Memory and descriptors of worker, agent and memory directory before and after many saves. They should not grow."""

from __future__ import annotations

import torch

from ckpt_bench.figures import Figure
from ckpt_bench.node import BenchNode

SAVES = 100
_WARM_UP = 20  # saves during which allocators and caches fill


def growth(node: BenchNode, state: dict[str, torch.Tensor]) -> list[Figure]:
    """The values after the saves; the peers are the values before."""
    ckpt = node.start()
    first = (ckpt.newest_step or 0) + 1
    before = {}
    for step in range(first, first + _WARM_UP + SAVES):
        if step == first + _WARM_UP:
            before = node.footprint()
        ckpt.save(step, state)
        node.wait_for("memory", step)
    return [
        Figure(name=f"{name} after {SAVES} saves", value=value, unit=unit, peers={"before them": before[name][0]})
        for name, (value, unit) in node.footprint().items()
    ]
