"""A Lightning Trainer with all that can get lost: accumulation, schedules, dropout, epoch means, metrics, callbacks."""

from __future__ import annotations

import json
import os
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics import MeanMetric
from witness import OUT, RANK, UNDER_HOLDFAST, WORLD_SIZE, Sums, digest, end, saw

FSDP = "FSDP" in os.environ


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 1))
        self.average = MeanMetric()

    def configure_model(self) -> None:
        if FSDP and not isinstance(self.layers[0].weight, torch.distributed.tensor.DTensor):
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        ids, x, y = batch
        saw(self.global_step, ids)
        loss = nn.functional.mse_loss(self.layers(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.average.update(loss.detach())
        self.log("average", self.average, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        _, x, y = batch
        self.log("val", nn.functional.mse_loss(self.layers(x), y), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val", "interval": "epoch"}}


def masked(samples: list[Any]) -> Any:
    """Draws from torch's own generator."""
    ids, x, y = (torch.stack([torch.as_tensor(part) for part in parts]) for parts in zip(*samples, strict=True))
    return ids, x * (torch.rand(x.shape) > 0.1), y


class Lines(Logger):
    """Writes what it is given to a file, as a logging service gets it."""

    name, version = "lines", 0

    def log_hyperparams(self, *args: Any, **keys: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        with (OUT / f"lines-{RANK}").open("a") as file:
            print(json.dumps([step, metrics]), file=file)


def main() -> None:
    torch.set_num_threads(1)
    L.seed_everything(1)
    strategy: Any = L.strategies.DDPStrategy(find_unused_parameters=True)
    if FSDP:
        strategy = L.strategies.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    passes = 4 // WORLD_SIZE
    best = ModelCheckpoint(OUT / "best", monitor="val", save_weights_only=True)
    early = EarlyStopping("val", patience=9)
    arguments: dict[str, Any] = {
        "accelerator": "cpu",
        "strategy": strategy,
        "max_epochs": 5,
        "accumulate_grad_batches": passes,
        "val_check_interval": 3 * passes,
        "callbacks": [early] if FSDP else [best, early],
        "logger": Lines(),
        "log_every_n_steps": 2,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": not FSDP,
    }
    module = Module()
    if UNDER_HOLDFAST:
        from holdfast.adapters.lightning import Trainer

        trainer = Trainer(**arguments)
    else:
        trainer = L.Trainer(**arguments, devices=WORLD_SIZE)
    samples, workers = int(os.environ.get("SAMPLES", "100")), int(os.environ.get("WORKERS", "0"))
    train = DataLoader(Sums(samples), 4, shuffle=True, collate_fn=None if workers else masked, num_workers=workers)
    trainer.fit(module, train, DataLoader(Sums(8), 4))
    logged = {}
    for line in (OUT / f"lines-{RANK}").read_text().splitlines() if RANK == 0 else ():
        step, metrics = json.loads(line)
        logged |= {f"{name} {step}": value for name, value in metrics.items()}  # of a step trained again, the last
    end(
        weights=digest(module.state_dict()),
        optimizer=digest(trainer.optimizers[0].state_dict()["state"]),
        rng=digest(torch.get_rng_state()),
        schedule=trainer.lr_scheduler_configs[0].scheduler.state_dict(),
        loops=trainer.fit_loop.state_dict(),
        counters=[trainer.global_step, trainer.current_epoch, trainer.fit_loop.epoch_loop._batches_that_stepped],
        callbacks=[
            early.state_dict()["wait_count"],
            str(best.best_model_score),
            os.path.basename(best.best_model_path),
        ],
        metrics={name: float(value) for name, value in trainer.callback_metrics.items()},
        logged=logged,
    )


if __name__ == "__main__":
    main()
