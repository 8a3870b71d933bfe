"""TRL's SFTTrainer, a subclass of transformers' Trainer, with a tiny model, a tokenizer and texts made here."""

from __future__ import annotations

import random
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from trainer_script import GLOBAL_BATCH, MICRO_BATCH, train, trained
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
from witness import OUT, WORLD_SIZE, end, saw

SAMPLES, WORDS = 100, 128  # the last step of an epoch is not full


class Watched(SFTTrainer):
    """The first word of each text is the sample's number."""

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **keys: Any) -> torch.Tensor:
        saw(self.state.global_step, inputs["input_ids"][:, 0])
        return super().training_step(model, inputs, *args, **keys)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {str(number): number for number in range(WORDS - 2)} | {"<end>": WORDS - 2, "<pad>": WORDS - 1}
    split = Tokenizer(WordLevel(words, unk_token="<pad>"))
    split.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=split, eos_token="<end>", pad_token="<pad>")


def texts() -> Dataset:
    draw = random.Random(1)
    rest = [[draw.randrange(100) for _ in range(draw.randint(3, 9))] for _ in range(SAMPLES)]
    return Dataset.from_dict({"text": [" ".join(map(str, [number, *words])) for number, words in enumerate(rest)]})


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(5)
    size = LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, attention_dropout=0.2,
    )  # fmt: skip
    arguments = SFTConfig(
        output_dir=str(OUT / "trainer"), use_cpu=True, bf16=False, seed=3, report_to=[], disable_tqdm=True,
        per_device_train_batch_size=MICRO_BATCH, gradient_accumulation_steps=GLOBAL_BATCH // MICRO_BATCH // WORLD_SIZE,
        learning_rate=3e-2, lr_scheduler_type="cosine", warmup_steps=4,
        num_train_epochs=5, logging_steps=4, save_strategy="no", ddp_find_unused_parameters=True,
    )  # fmt: skip
    trainer = Watched(LlamaForCausalLM(size), arguments, train_dataset=texts(), processing_class=tokenizer())
    train(trainer)
    end(**trained(trainer))


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # else gloo's threads abort the end of a process now and then
