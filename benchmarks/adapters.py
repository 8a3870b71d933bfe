"""What an adapter costs at each step, beside the bare framework in the same run.

    python benchmarks/adapters.py [--steps 400] [--rounds 5]

Bare and with Holdfast in turn, one process, CPU time of the process. The model is tiny, so that a step is nothing but
the framework. The cost is one sum at each step: its share of a step of a real model is that much smaller.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ckpt.format.atomic_files import MEMORY_ROOT
from holdfast import Checkpointer

NEVER = 1 << 40
Run = Callable[[int, int | None], float]  # number of steps, steps between saves or None for bare -> CPU seconds


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

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.layer(x), labels)}


def forget() -> None:
    """Removes the memory of earlier runs: each begins at step 0."""
    for folder in (MEMORY_ROOT / f"holdfast-{os.getuid()}").glob("solo-adapters-bench-*"):
        shutil.rmtree(folder)


def checkpointer(every: int) -> Checkpointer:
    forget()
    return Checkpointer(config={"namespace": "adapters-bench", "memory": {"every_steps": every, "keep": 2}})


def transformers(steps: int, every: int | None) -> float:
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
    if every is not None:
        holdfast(trainer, checkpointer(every))
    seconds = timed(trainer.train)
    shutil.rmtree(folder)
    return seconds


def lightning(steps: int, every: int | None) -> float:
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
    trainer = L.Trainer(**arguments) if every is None else Trainer(checkpointer=checkpointer(every), **arguments)
    loader = torch.utils.data.DataLoader(Data(4 * steps), 4, shuffle=True)
    return timed(lambda: trainer.fit(Module(), loader))


def timed(train: Callable[[], Any]) -> float:
    began = time.process_time()
    train()
    return time.process_time() - began


def measure(run: Run, steps: int, rounds: int) -> tuple[float, float, float]:
    """Medians: microseconds of a bare step, of what the adapter adds to it, and of a save."""
    bare, own, save = [], [], []
    run(20, None)
    run(20, NEVER)
    for _ in range(rounds):
        # a run of no steps has the costs of its start, which differ too
        first, second = (run(steps, None) - run(1, None), run(steps, NEVER) - run(1, NEVER))
        third = run(steps, 10) - run(1, 10)
        bare.append(first / steps)
        own.append((second - first) / steps)
        save.append((third - second) / (steps // 10))
    return tuple(1e6 * statistics.median(column) for column in (bare, own, save))  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"{'framework':14}{'bare step':>12}{'adapter':>12}{'a save':>12}   share of a step of 20 ms")
    for name, run in (("transformers", transformers), ("lightning", lightning)):
        bare, own, save = measure(run, args.steps, args.rounds)
        forget()
        print(f"{name:14}{bare:>9.0f} us{own:>9.0f} us{save:>9.0f} us   {own / 20_000:.2%}", flush=True)


if __name__ == "__main__":
    main()
