"""A tensor-parallel network with Megatron's mappings. MODE is `dist` (ShardedState) or `local` (Megatron's manager)."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.mapping import ShardedObject
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from torch import nn
from witness import OUT, RANK, UNDER_HOLDFAST, WORLD_SIZE, Sums, digest, end, saw

from holdfast import Checkpointer

STEPS, HIDDEN = 35, 32
DIMS = {"up": 0, "down": 1}  # along which a weight is sharded


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        whole = {"up": torch.randn(HIDDEN, 16) / 4, "down": torch.randn(1, HIDDEN) / 6}
        self.weights = nn.ParameterDict({k: w.chunk(WORLD_SIZE, DIMS[k])[RANK].clone() for k, w in whole.items()})
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = torch.tanh(x @ self.weights["up"].T) @ self.weights["down"].T
        return reduce_from_tensor_model_parallel_region(part, dist.group.WORLD) + self.bias


class Training:
    def __init__(self) -> None:
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.step = 0
        for parameter in self.net.parameters():
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}

    def tensors(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, parameter in self.net.named_parameters():
            found[name] = parameter.data
            found |= {f"{name}.{key}": self.optimizer.state[parameter][key] for key in ("exp_avg", "exp_avg_sq")}
        return found

    def sharded(self) -> dict[str, Any]:
        def of(name: str, tensor: torch.Tensor) -> ShardedTensor:
            dim = next((dim for key, dim in DIMS.items() if f".{key}" in name), None)
            if dim is None:
                return ShardedTensor.from_rank_offsets(name, tensor, replica_id=RANK)
            return ShardedTensor.from_rank_offsets(name, tensor, (dim, RANK, WORLD_SIZE))

        rng = ShardedObject("rng", {"cpu": torch.get_rng_state(), "kind": Net}, (1,), (0,), replica_id=RANK)
        tensors = {name: of(name, tensor) for name, tensor in self.tensors().items()}
        return {"tensors": tensors, "rng": rng, "iteration": self.step, "args": {"lr": 0.01}}

    def put(self, saved: dict[str, Any]) -> int:
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(saved["tensors"][name])
        self.step = saved["iteration"]
        for state in self.optimizer.state.values():
            state["step"].fill_(self.step)
        torch.set_rng_state(saved["rng"]["cpu"])
        assert saved["args"] == {"lr": 0.01} and saved["rng"]["kind"] is Net
        return self.step

    def note(self, what: str) -> None:
        """The digest of the whole tensors."""
        whole = {}
        for name, tensor in self.tensors().items():
            dim = next((dim for key, dim in DIMS.items() if f".{key}" in name), None)
            parts = [torch.empty_like(tensor) for _ in range(WORLD_SIZE)]
            dist.all_gather(parts, tensor.contiguous())
            whole[name] = parts[0] if dim is None else torch.cat(parts, dim)
        (OUT / f"{what}-{self.step}").write_text(digest(whole))


def saver(training: Training, ckpt: Checkpointer) -> Any:
    """Restores the newest step, and returns the function that saves."""
    from holdfast.adapters.megatron import LocalCheckpointManager, ShardedState

    if os.environ["MODE"] == "dist":
        sharded = ShardedState(ckpt)
        if ckpt.newest_step is not None:
            training.put(sharded.load(training.sharded()))
        return lambda step: sharded.save(step, training.sharded())
    from megatron.core.dist_checkpointing.tensor_aware_state_dict import MCoreTensorAwareStateDict

    how: Any = {"algo": "atomic", "parallelization_group": dist.group.WORLD}
    manager = LocalCheckpointManager(ckpt)
    if manager.find_latest() != -1:
        found, _ = manager.load()
        training.put(found.to_state_dict(training.sharded(), **how))
    return lambda step: manager.save(MCoreTensorAwareStateDict.from_state_dict(training.sharded(), **how)[0], step)


def train(training: Training, ckpt: Checkpointer | None, save: Any) -> None:
    data = Sums(8 * STEPS)
    while training.step < STEPS:
        ids = range(8 * training.step, 8 * training.step + 8)
        saw(training.step, ids if RANK == 0 else [])
        x, y = (torch.stack(each) for each in list(zip(*(data[i] for i in ids), strict=True))[1:])
        noise = torch.randn(x.shape) / 10  # the same on all ranks
        (training.net(x + noise) - y).square().mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        training.step += 1
        if ckpt and ckpt.should_save(training.step):
            training.note("saved")
            save(training.step)
        if ckpt and ckpt.should_stop(training.step):
            break


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    training = Training()
    if UNDER_HOLDFAST:
        with Checkpointer.from_env() as ckpt:
            save = saver(training, ckpt)
            training.note("loaded")
            train(training, ckpt, save)
    else:
        train(training, None, None)
    end(state=digest(training.tensors()), step=training.step, rng=digest(torch.get_rng_state()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
