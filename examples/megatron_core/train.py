"""Trains a small network of Megatron-core's tensor-parallel mappings on CPUs, with steps that load at any parallelism.

A job that has a node less trains the same network on fewer ranks: each rank loads larger shards.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from torch import nn

from holdfast import Checkpointer
from holdfast.adapters.megatron import ShardedState

HIDDEN, BATCH = 64, 16
DIMS = {"up": 0, "down": 1}  # along which each weight is sharded


class Net(nn.Module):
    """A column-parallel layer, then a row-parallel one."""

    def __init__(self) -> None:
        super().__init__()
        rank, ranks = dist.get_rank(), dist.get_world_size()
        whole = {"up": torch.randn(HIDDEN, 16) / 4, "down": torch.randn(1, HIDDEN) / 8}
        self.weights = nn.ParameterDict({key: w.chunk(ranks, DIMS[key])[rank].clone() for key, w in whole.items()})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = torch.tanh(x @ self.weights["up"].T) @ self.weights["down"].T
        return reduce_from_tensor_model_parallel_region(part, dist.group.WORLD)


class Training:
    def __init__(self) -> None:
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.step = 0
        for parameter in self.net.parameters():
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def tensors(self) -> dict[str, torch.Tensor]:
        """This rank's shards, by key."""
        found = {}
        for key, parameter in self.net.weights.items():
            found[key] = parameter.data
            found[f"{key}.momentum"] = self.optimizer.state[parameter]["momentum_buffer"]
        return found

    def state_dict(self) -> dict[str, Any]:
        """What `dist_checkpointing.save` takes."""
        rank, ranks = dist.get_rank(), dist.get_world_size()
        sharded = {
            key: ShardedTensor.from_rank_offsets(key, tensor, (DIMS[key.partition(".")[0]], rank, ranks))
            for key, tensor in self.tensors().items()
        }
        return {"tensors": sharded, "iteration": self.step}

    def load(self, saved: dict[str, Any]) -> None:
        for key, tensor in self.tensors().items():
            tensor.copy_(saved["tensors"][key])
        self.step = saved["iteration"]

    def train_step(self) -> float:
        x = torch.randn(BATCH, 16, generator=torch.Generator().manual_seed(self.step))
        loss = (self.net(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    training = Training()
    with Checkpointer.from_env() as ckpt:
        sharded = ShardedState(ckpt)
        if ckpt.newest_step is not None:
            training.load(sharded.load(training.state_dict()))
        while training.step < args.steps:
            loss = training.train_step()
            if dist.get_rank() == 0 and training.step % 10 == 0:
                print(f"step {training.step} loss {loss:.5f}", flush=True)
            if ckpt.should_save(training.step) or training.step == args.steps:
                sharded.save(training.step, training.state_dict())
            if ckpt.should_stop(training.step):
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
