"""What an adapter costs at each step, beside the bare framework in the same run.

    python benchmarks/adapters.py [--steps 150] [--rounds 15]

Bare and with Holdfast in turn, one process, CPU time of the thread that trains, no saves. The model is tiny, so that a
step is nothing but the framework. The cost is a sum at each step: its share of a real model's step is that much
smaller.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import nn

from ckpt.format.atomic_files import MEMORY_ROOT
from holdfast import Checkpointer

NEVER = 1 << 40
FIRST = 20  # steps that are not counted
Run = Callable[[int, bool], list[float]]  # number of steps, with Holdfast -> CPU time at each step


class Data(torch.utils.data.Dataset):
    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((16,), float(index % 7)), "labels": torch.zeros(1)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 1)
        self.began: list[float] = []  # CPU time at each pass, one a step

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.began.append(time.thread_time())
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}


def forget() -> None:
    """Removes the memory of earlier runs: each begins at step 0."""
    for folder in (MEMORY_ROOT / f"holdfast-{os.getuid()}").glob("solo-adapters-bench-*"):
        shutil.rmtree(folder)


def checkpointer() -> Checkpointer:
    forget()
    return Checkpointer(config={"namespace": "adapters-bench", "memory": {"every_steps": NEVER, "keep": 2}})


def transformers(steps: int, with_holdfast: bool) -> list[float]:
    from transformers import Trainer, TrainingArguments

    from holdfast.adapters.transformers import holdfast

    folder = tempfile.mkdtemp(prefix="holdfast-bench-")
    arguments = TrainingArguments(
        output_dir=folder, use_cpu=True, max_steps=steps, per_device_train_batch_size=4, logging_steps=50,
        save_strategy="no", report_to=[], disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(Model(), arguments, train_dataset=Data(4 * steps))
    trainer.callback_handler.callbacks = [
        one for one in trainer.callback_handler.callbacks if "Printer" not in str(one)
    ]
    if with_holdfast:
        holdfast(trainer, checkpointer())
    trainer.train()
    shutil.rmtree(folder)
    return trainer.model.began


def lightning(steps: int, with_holdfast: bool) -> list[float]:
    import lightning.pytorch as L

    from holdfast.adapters.lightning import Trainer

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch)["loss"]
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    arguments: dict[str, Any] = {
        "accelerator": "cpu", "devices": 1, "max_steps": steps, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    trainer = Trainer(checkpointer=checkpointer(), **arguments) if with_holdfast else L.Trainer(**arguments)
    loader = torch.utils.data.DataLoader(Data(4 * steps), 4, shuffle=True)
    module = Module()
    trainer.fit(module, loader)
    return module.model.began


def torchtitan(steps: int, with_holdfast: bool) -> list[float]:
    from torchtitan.components import checkpointer as theirs

    from holdfast.adapters import torchtitan as ours

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    kind = ours.CheckpointManager if with_holdfast else theirs.CheckpointManager
    with mock.patch.object(Checkpointer, "from_env", checkpointer):
        manager = kind.Config(enable=True, interval=NEVER, keep_latest_k=0).build(
            dataloader=None, model_parts=[model], optimizers=optimizer, lr_schedulers=None, states={}, sd_adapter=None,
            base_folder=tempfile.gettempdir(),
        )  # fmt: skip
    for step in range(1, steps + 1):
        _train(model, optimizer)
        manager.maybe_wait_for_staging()
        manager.save(step)
    manager.close()
    return model.began


def loop(steps: int, with_holdfast: bool) -> list[float]:
    """A loop of one's own, as with Megatron-core, DeepSpeed and accelerate."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    if not with_holdfast:
        for _ in range(steps):
            _train(model, optimizer)
        return model.began
    state = {"model": model, "optimizer": optimizer}
    with checkpointer() as ckpt:
        for step in range(1, steps + 1):
            _train(model, optimizer)
            if ckpt.should_save(step):
                ckpt.save(step, state)
            if ckpt.should_stop(step):
                break
    return model.began


def _train(model: Model, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(4, 16), torch.zeros(4, 1))["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()


def measure(run: Run, steps: int, rounds: int) -> tuple[float, float]:
    """Microseconds of a bare step, and of what the adapter adds to it. Medians of the rounds."""

    def step_s(with_holdfast: bool) -> float:
        began = run(steps, with_holdfast)
        return (began[-1] - began[FIRST]) / (len(began) - 1 - FIRST)

    found = [(step_s(False), step_s(True)) for _ in range(rounds)]
    return 1e6 * statistics.median(row[0] for row in found), 1e6 * statistics.median(row[1] - row[0] for row in found)


RUNS: dict[str, Run] = {"transformers": transformers, "lightning": lightning, "torchtitan": torchtitan, "loop": loop}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"{'framework':14}{'bare step':>12}{'adapter':>12}   share of a step of 20 ms")
    for name, run in RUNS.items():
        if name != "loop" and importlib.util.find_spec(name) is None:
            print(f"{name:14}    not installed")
            continue
        bare, own = measure(run, args.steps, args.rounds)
        forget()
        print(f"{name:14}{bare:>9.0f} us{own:>9.0f} us   {own / 20_000:.2%}", flush=True)


if __name__ == "__main__":
    main()
