"""Trains a small GPT on the Python standard library's source, in plain PyTorch: DDP, or FSDP2 with --fsdp.

Only the lines with `ckpt` use Holdfast. The data of a step depend on the step alone. So a run with failures ends with
the same weights as a run without.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from holdfast import Checkpointer


class Block(nn.Module):
    """One pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, context, width]
        batch, context, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, context, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [batch, heads, context, width // heads]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, context, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # [batch, context] -> [batch, context, 256]
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def standard_library() -> torch.Tensor:
    """The bytes of all top-level modules of the standard library, in the order of their names: uint8, [bytes]."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batch_of(step: int, data: torch.Tensor, args: argparse.Namespace, rank: int, world: int) -> torch.Tensor:
    """This rank's part of a step's global batch: int64, [global_batch / world, context + 1]. It depends on no state."""
    generator = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    starts = torch.randint(len(data) - args.context - 1, (args.global_batch,), generator=generator)
    return torch.stack([data[s : s + args.context + 1] for s in starts[rank::world]]).long()


def digest(*state_dicts: dict) -> str:
    """SHA-256 over all tensors and values, to compare two runs bit for bit. Collective: with FSDP it gathers shards."""
    sha = hashlib.sha256()

    def feed(value: object) -> None:
        if isinstance(value, dict):
            for key in value:
                sha.update(str(key).encode())
                feed(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                feed(item)
        elif isinstance(value, torch.Tensor):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            data = whole.detach().cpu().contiguous()
            sha.update(data.flatten().view(torch.uint8).numpy().tobytes())
        else:
            sha.update(repr(value).encode())

    for state_dict in state_dicts:
        feed(state_dict)
    return sha.hexdigest()


def wrap(model: GPT, fsdp: bool) -> nn.Module:
    if not fsdp:
        # DDP regroups its gradient buckets after the first step of each start. Sums would then round differently from a
        # run without interruption. With find_unused_parameters DDP keeps the first grouping.
        return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("steps", 200),
        ("layers", 4),
        ("width", 192),
        ("heads", 6),
        ("context", 64),
        ("global-batch", 12),
        ("seed", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--fsdp", action="store_true", help="shard the model with FSDP2 instead of DDP")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")  # also Holdfast's messages

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with a fixed workspace

    data = standard_library()
    model = GPT(args.layers, args.width, args.heads, args.context).to(device)
    trained = wrap(model, args.fsdp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = {"model": model, "optimizer": optimizer, "loss": 0.0}

    with Checkpointer.from_env() as ckpt:
        step = ckpt.load(state) or 0  # the newest step that can be restored; None if there is none
        while step < args.steps:
            tokens = batch_of(step, data, args, rank, world).to(device)
            loss = F.cross_entropy(trained(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0 or step == args.steps:
                state["loss"] = loss.item()
                if rank == 0:
                    print(f"step {step}/{args.steps}  loss {state['loss']:.4f}", flush=True)
            if ckpt.should_save(step) or step == args.steps:
                ckpt.save(step, state)
            if ckpt.should_stop(step):  # the same answer on all ranks; this step has been saved
                break

    if step == args.steps:
        final = {
            "step": step,
            "final_loss": state["loss"],
            "state_sha256": digest(model.state_dict(), optimizer.state_dict()),
        }
        if rank == 0:
            Path(os.environ.get("HOLDFAST_JOB_DIR", "."), "final.json").write_text(json.dumps(final))
            print(json.dumps(final), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
