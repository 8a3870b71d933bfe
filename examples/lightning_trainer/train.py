"""Trains a small network with Lightning and Holdfast's checkpoints. The import of Trainer is Holdfast's only line."""

from __future__ import annotations

import argparse
from typing import Any

import lightning.pytorch as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from holdfast.adapters.lightning import Trainer


class Sums(Dataset):
    """Vectors, and the sums of their numbers."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return x, x.sum(0, keepdim=True)


class Model(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, 1))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.layers(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.log("val", nn.functional.mse_loss(self.layers(x), y), sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.print(f"step {self.global_step} val {self.trainer.callback_metrics['val']:.5f}", flush=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples", type=int, default=400)
    args = parser.parse_args()

    L.seed_everything(1)
    trainer = Trainer(
        max_epochs=args.epochs,
        strategy="ddp_find_unused_parameters_true",  # the same order of sums after a restart
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Model(), DataLoader(Sums(args.samples), 4, shuffle=True), DataLoader(Sums(40), 4))


if __name__ == "__main__":
    main()
