"""Trains a small network with FSDP2 and torchtitan's data loader and checkpoint manager, on CPUs.

torchtitan's Trainer needs a GPU, so this loop is in its place, in the same order. With the Trainer, the config's field
`checkpoint` is Holdfast's only line; here it is the config of the manager.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torchtitan.components.dataloader import ParallelAwareDataloader

from holdfast.adapters.torchtitan import CheckpointManager

_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Sums(torch.utils.data.IterableDataset):
    """Vectors, and the sums of their numbers, without an end. Its position is in its state."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._next, self._ranks = rank, ranks

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            x = torch.randn(16, generator=torch.Generator().manual_seed(self._next))
            self._next += self._ranks
            yield x, x.sum(0, keepdim=True)

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


class Optimizers:
    """The optimizer's state by the names of parameters, as torchtitan's container has it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> Any:
        return get_optimizer_state_dict(self._model, self._optimizer, options=_FLAT)

    def load_state_dict(self, state: Any) -> None:
        set_optimizer_state_dict(self._model, self._optimizer, state, options=_FLAT)


class Progress:
    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (ranks,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    loader = ParallelAwareDataloader(Sums(rank, ranks), rank, ranks, batch_size=8)
    progress = Progress()
    manager = CheckpointManager.Config(enable=True).build(
        dataloader=loader, model_parts=[model], optimizers=Optimizers(model, optimizer), lr_schedulers=schedule,
        states={"train_state": progress}, sd_adapter=None, base_folder=".",
    )  # fmt: skip

    manager.load()
    batches = iter(loader)
    while progress.step < args.steps:
        x, y = next(batches)
        loss = (model(x) - y).square().mean()
        loss.backward()
        manager.maybe_wait_for_staging()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress.step += 1
        if rank == 0 and progress.step % 10 == 0:
            print(f"step {progress.step} loss {loss.item():.5f}", flush=True)
        manager.save(progress.step, last_step=progress.step == args.steps)
    manager.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
