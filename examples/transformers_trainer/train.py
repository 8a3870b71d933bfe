"""Trains a small GPT-2 on the Python standard library with transformers' Trainer and Holdfast's checkpoints.

Two lines are Holdfast's. The global batch is the same at every world size, so the job may lose nodes and go on.
"""

from __future__ import annotations

import argparse
import os
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from holdfast.adapters.transformers import holdfast

GLOBAL_BATCH, MICRO_BATCH = 16, 4


class StandardLibrary(Dataset):
    """Samples are windows of the source of Python's standard library, as bytes."""

    def __init__(self, samples: int, context: int) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
        self._windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, context, context)[:samples]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self._windows[index].long()
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=800)
    parser.add_argument("--out", default="checkpoints", help="for the trained model")
    args = parser.parse_args()

    torch.manual_seed(1)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        output_dir=args.out,
        use_cpu=not torch.cuda.is_available(),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=GLOBAL_BATCH // MICRO_BATCH // int(os.environ["WORLD_SIZE"]),
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        ddp_find_unused_parameters=True,  # the same order of sums after a restart
    )
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=StandardLibrary(args.samples, 64))
    holdfast(trainer).train()
    trainer.save_model(f"{args.out}/model")


if __name__ == "__main__":
    main()
