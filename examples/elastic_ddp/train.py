"""Elastic training in plain DDP with ElasticSampler, batch_plan and Checkpointer.

Every step has the same samples and the same global batch at any number of nodes. So the loss is that of a job that is
never resized. With `--print-samples` each rank prints the samples of each step to its log.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from holdfast import Checkpointer, ElasticLoader, ElasticSampler, RngState, batch_plan


class StandardLibrary(Dataset):
    """Samples are windows of the Python standard library's source: (index, [context + 1] bytes as int64)."""

    def __init__(self, samples: int, context: int) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
        self._windows = torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, context + 1, context)[:samples]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self._windows[index].long()


class Model(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # [batch, context] -> [batch, context, 256]
        context = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(context, device=tokens.device)
        x = self.token(tokens) + self.position(torch.arange(context, device=tokens.device))
        return self.head(self.layers(x, mask=mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("steps", 200),
        ("global-batch", 24),
        ("max-micro-batch", 4),
        ("samples", 2000),
        ("context", 64),
        ("width", 64),
        ("layers", 1),
        ("workers", 2),
        ("seed", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--double", action="store_true", help="use float64, so that the order of sums matters less")
    parser.add_argument("--print-samples", action="store_true", help="print each step's samples on every rank")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(args.seed)
    torch.set_default_dtype(torch.float64 if args.double else torch.float32)

    # The global batch is the same at every world size, unless elastic.scale in the job file sets another one.
    plan = batch_plan(args.global_batch, max_micro_batch=args.max_micro_batch, lr_scaling="linear")
    data = StandardLibrary(args.samples, args.context)
    sampler = ElasticSampler(data, plan, seed=args.seed)
    loader = ElasticLoader(DataLoader(data, plan.micro_batch, sampler=sampler, num_workers=args.workers))
    model = Model(args.width, args.layers, args.context).to(device)
    trained = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.recipe.get("lr", args.lr) * plan.lr_factor)
    state = {"model": model, "optimizer": optimizer, "data": loader, "rng": RngState()}
    if dist.get_rank() == 0:
        print(f"{plan.world_size} ranks, each {plan.accumulation} micro-batches of {plan.micro_batch}", flush=True)

    with Checkpointer.from_env() as ckpt:
        step = ckpt.load(state) or 0
        seen: list[int] = []
        step_loss = torch.zeros((), device=device)
        for samples, tokens in loader.endless() if step < args.steps else ():
            tokens = tokens.to(device)
            with contextlib.nullcontext() if loader.ends_step else trained.no_sync():
                logits = trained(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / plan.accumulation
                loss.backward()
            step_loss += loss.detach()
            seen += samples.tolist()
            if not loader.ends_step:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            dist.all_reduce(step_loss)
            if args.print_samples:
                print(f"step {step} samples {seen}", flush=True)
            if dist.get_rank() == 0:
                print(f"step {step} loss {step_loss.item() / plan.world_size:.9f}", flush=True)
            seen, step_loss = [], torch.zeros((), device=device)
            if ckpt.should_save(step) or step == args.steps:
                ckpt.save(step, state)
            if ckpt.should_stop(step) or step == args.steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
