"""What many saves leave behind in worker, agent and memory directory: nothing, when all is well."""

from __future__ import annotations

import torch

from ckpt_bench.figures import Figure
from ckpt_bench.node import BenchNode

SAVES = 100
_WARM = 20  # until then allocators and caches fill


def growth(node: BenchNode, state: dict[str, torch.Tensor]) -> list[Figure]:
    """Peers are the values before the 100 saves."""
    ckpt = node.start()
    first = (ckpt.newest_step or 0) + 1
    for step in range(first, first + _WARM):
        ckpt.save(step, state)
        node.wait_for("memory", step)
    before = node.footprint()
    for step in range(first + _WARM, first + _WARM + SAVES):
        ckpt.save(step, state)
        node.wait_for("memory", step)
    after = node.footprint()
    rows = {
        "worker, own memory": ("worker_mib", "MiB"), "worker, descriptors": ("worker_descriptors", ""),
        "agent, own memory": ("agent_mib", "MiB"), "agent, descriptors": ("agent_descriptors", ""),
        "memory directory": ("shm_mib", "MiB"),
    }  # fmt: skip
    return [
        Figure(
            name=f"{name} after {SAVES} saves",
            value=getattr(after, field),
            unit=unit,
            peers={"before them": getattr(before, field)},
        )
        for name, (field, unit) in rows.items()
    ]
