"""A transformers Trainer with all that can get lost: accumulation, schedule, dropout, logs, callbacks, best model."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import torch
from torch import nn
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from witness import OUT, UNDER_HOLDFAST, WORLD_SIZE, Sums, digest, end, saw

MICRO_BATCH, GLOBAL_BATCH = 4, 16
SAMPLES = int(os.environ.get("SAMPLES", "100"))  # by default the last step of an epoch is not full


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.layers(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


class Data(Sums):
    def __getitem__(self, index: int) -> dict[str, Any]:
        return dict(zip(("ids", "x", "labels"), super().__getitem__(index), strict=True))


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self) -> Any:
        return (Data(SAMPLES)[index] for index in range(SAMPLES))


def masked(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """As the collator of masked language models, it draws from torch's own generator."""
    batch = {key: torch.stack([torch.as_tensor(sample[key]) for sample in samples]) for key in samples[0]}
    if not {"WORKERS", "STREAM"} & set(os.environ):
        batch["x"] = batch["x"] * (torch.rand(batch["x"].shape) > 0.1)
    return batch


class Counting(TrainerCallback, ExportableState):
    """A callback with a state of its own."""

    def __init__(self, unit: int) -> None:
        self.unit, self.logs = unit, 0

    def on_log(self, *args: Any, **keys: Any) -> None:
        self.logs += self.unit

    def state(self) -> dict[str, Any]:
        return {"args": {"unit": self.unit}, "attributes": {"logs": self.logs}}


class Watched(Trainer):
    """Stands for a subclass of the user's."""

    def __init__(self, *args: Any, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.counts: dict[str, int] = defaultdict(int)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **keys: Any) -> torch.Tensor:
        saw(self.state.global_step, inputs.pop("ids"))
        self.counts["steps"] += 1
        return super().training_step(model, inputs, *args, **keys)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return int(inputs["x"].numel())

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **keys: Any) -> Any:
        inputs.pop("ids")
        return super().prediction_step(model, inputs, *args, **keys)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    fsdp, stream = "FSDP" in os.environ, "STREAM" in os.environ
    arguments = TrainingArguments(
        output_dir=str(OUT / "trainer"),
        use_cpu=True,
        seed=3,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=GLOBAL_BATCH // MICRO_BATCH // WORLD_SIZE,
        learning_rate=3e-2,
        lr_scheduler_type="cosine",
        warmup_steps=4,
        num_train_epochs=5,
        max_steps=33 if stream else -1,
        logging_steps=4,
        eval_strategy="no" if fsdp else "epoch",
        save_strategy="no" if fsdp else "epoch",
        save_only_model=True,
        load_best_model_at_end=not fsdp,
        save_total_limit=2,
        dataloader_num_workers=int(os.environ.get("WORKERS", "0")),
        ddp_find_unused_parameters=True,
        eval_on_start=not fsdp,
        **({"fsdp": "full_shard", "fsdp_config": {"version": 2}} if fsdp else {}),
    )
    counting = Counting(unit=10)
    early = [] if fsdp else [EarlyStoppingCallback(early_stopping_patience=9)]
    trainer = Watched(
        Model(),
        arguments,
        masked,
        Stream() if stream else Data(SAMPLES),
        None if fsdp else torch.utils.data.Subset(Data(SAMPLES), range(8)),
        callbacks=[counting, *early],
    )
    train(trainer, attributes=["counts"])
    end(
        **trained(trainer),
        best=[str(trainer.state.best_metric), os.path.basename(trainer.state.best_model_checkpoint or "")],
        callbacks=[counting.logs, *(one.early_stopping_patience_counter for one in early)],
        attributes=trainer.counts["steps"],
    )


def train(trainer: Trainer, **keys: Any) -> None:
    """With Holdfast's checkpoints, unless the run is undisturbed."""
    if UNDER_HOLDFAST:
        from holdfast.adapters.transformers import holdfast

        trainer = holdfast(trainer, **keys)
    trainer.train()


def trained(trainer: Trainer) -> dict[str, Any]:
    """What any Trainer ends with. `history` has the training's total loss, too."""
    times = ("_runtime", "_per_second")
    history = [
        {key: value for key, value in entry.items() if not key.endswith(times)} for entry in trainer.state.log_history
    ]
    return {
        "weights": digest(trainer.accelerator.unwrap_model(trainer.model_wrapped).state_dict()),
        "optimizer": digest(trainer.optimizer.state_dict()["state"]),
        "schedule": trainer.lr_scheduler.get_last_lr(),
        "rng": digest(torch.get_rng_state()),
        "history": history,
        "result": [trainer.state.global_step, trainer.state.total_flos],
    }


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # else gloo's threads abort the end of a process now and then
