"""Several ranks in processes of their own, with real process groups, on one node with a real agent."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from trainer_kit import LIMIT_S, Node, checkpointer, processes

from ckpt import Checkpointer
from ckpt.config import CheckpointConfig, Place

needs_torch_2_7 = pytest.mark.skipif(
    torch.__version__.startswith("2.6."), reason="torch 2.6 runs FSDP2 on GPUs only, and its _StridedShard only evenly"
)


class World(Node):
    """One node with several ranks, real process groups, real agents."""

    ranks = 1

    def run(self, size: int, work: Callable[[Checkpointer, int], Any], **options: Any) -> list[Any]:
        """Runs `work` on every rank of a new attempt of `size` ranks; returns what each returned.

        Options are Checkpointer's.
        """
        self.ranks = size
        self.start().close(wait=False)
        results = processes.Queue()
        store = self.ram_dir.parent / f"store-{self.attempt}"
        ranks = [
            processes.Process(target=_rank, args=(rank, size, store, self.place, self.section, work, results, options))
            for rank in range(size)
        ]
        for process in ranks:
            process.start()
        try:
            by_rank = dict(pickle.loads(results.get(timeout=LIMIT_S)) for _ in ranks)
        finally:
            for process in ranks:
                process.join(5)
                process.kill()
        failures = [f"rank {rank}: {result}" for rank, result in by_rank.items() if isinstance(result, Exception)]
        assert not failures, "\n".join(failures)
        return [by_rank[rank] for rank in range(size)]

    @property
    def place(self) -> Place:
        return replace(super().place, ranks_per_node=self.ranks)


def placed(whole: torch.Tensor, mesh: DeviceMesh, placements: list[Any]) -> DTensor:
    """A DTensor made of what this rank should hold of a whole tensor."""
    local = torch.empty(0)
    if (coordinate := mesh.get_coordinate()) is not None:
        local = split(whole, tuple(mesh.shape), tuple(coordinate), placements).contiguous()
    return DTensor.from_local(local, mesh, placements, shape=whole.shape, stride=whole.stride())


def split(whole: torch.Tensor, mesh: Sequence[int], at: Sequence[int], placements: Sequence[Any]) -> torch.Tensor:
    """A local tensor, as torch splits a whole one."""
    for size, i, placement in zip(mesh, at, placements, strict=True):
        if not placement.is_replicate():
            whole = placement._split_tensor(whole, size, with_padding=False)[0][i]
    return whole


def _rank(
    rank: int, size: int, store: Path, place: Place, section: dict[str, Any], work: Any, results: Any, options: Any
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
        config = CheckpointConfig.from_mapping(section)
        with checkpointer(place, config, rank=rank, local_rank=rank, **options) as ckpt:
            result = work(ckpt, rank)
            dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:  # torch's CheckpointException is no Exception
        result = RuntimeError("".join(traceback.format_exception(error)[-6:]))
    results.put(pickle.dumps((rank, result)))  # bytes: torch would pass file descriptors of a process that ends
