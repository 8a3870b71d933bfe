"""An FSDP2 loop, as torchtitan's Trainer has it, around torchtitan's checkpoint manager and its data loader."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torchtitan.components import checkpointer
from torchtitan.components.dataloader import ParallelAwareDataloader
from witness import RANK, UNDER_HOLDFAST, WORLD_SIZE, Sums, digest, end, saw

STEPS = 35
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Samples(torch.utils.data.IterableDataset):
    """Endless, with a position that is its own, as torchtitan's text datasets are."""

    def __init__(self) -> None:
        self._next = RANK

    def __iter__(self) -> Any:
        data = Sums()
        while True:
            index, self._next = self._next, self._next + WORLD_SIZE
            yield data[index]

    def state_dict(self) -> dict[str, int]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["next"]


class Optimizers:
    """As torchtitan's container: the state by parameter names."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def state_dict(self) -> Any:
        return get_optimizer_state_dict(self._model, self._optimizer, options=_FLAT)

    def load_state_dict(self, state: Any) -> None:
        set_optimizer_state_dict(self._model, self._optimizer, state, options=_FLAT)


class TrainState:
    def __init__(self) -> None:
        self.step = self.ntokens_seen = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (WORLD_SIZE,))
    model = nn.Sequential(
        nn.Linear(16, 32), nn.Dropout(0.2), nn.Sequential(nn.Linear(32, 32), nn.Tanh()), nn.Linear(32, 1)
    )
    for part in (model[2], model):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    loader = ParallelAwareDataloader(Samples(), RANK, WORLD_SIZE, batch_size=8)
    if UNDER_HOLDFAST:
        from holdfast.adapters.torchtitan import CheckpointManager

        config: Any = CheckpointManager.Config(enable=True, keep_latest_k=0)
    else:
        config = checkpointer.CheckpointManager.Config(enable=False, keep_latest_k=0)
    state = TrainState()
    manager = config.build(
        dataloader=loader, model_parts=[model], optimizers=Optimizers(model, optimizer), lr_schedulers=schedule,
        states={"train_state": state}, sd_adapter=None, base_folder=os.environ["OUT"],
    )  # fmt: skip
    manager.load()
    batches = iter(loader)
    while state.step < STEPS:
        ids, x, y = next(batches)
        saw(state.step, ids)
        (model(x) - y).square().mean().backward()
        manager.maybe_wait_for_staging()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        state.step += 1
        state.ntokens_seen += len(ids)
        manager.save(state.step, last_step=state.step == STEPS)
    manager.close()
    end(
        weights=digest(model.state_dict()),
        optimizer=digest(get_optimizer_state_dict(model, optimizer, options=_FLAT)),
        schedule=schedule.state_dict()["_last_lr"],
        state=state.state_dict(),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
