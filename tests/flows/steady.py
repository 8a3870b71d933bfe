"""The fault tests' script: trains a small model until the file `finish` lies in the job's folder.

A file `raise-R` there has rank R raise an exception, `away-R` has it stay away from the collectives for ever; either is
removed first, so it happens once. Gradients are summed as whole numbers: the weights are the same bit for bit whatever
the world size, and `--reference` computes them in one process, without any launcher: it reads a step from each line of
its input, every tenth has one, and answers with the digest. With `--loaders N` each rank reads from a DataLoader with
so many forked workers, and whoever hears a SIGUSR1 says so.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from ckpt import Checkpointer

EVERY = 10  # steps between two digests, and between two saves
_PARTS = 6  # of a step's batch; each rank computes some of them
_ONE = 1 << 20  # what a gradient of 1.0 is as a whole number


class Trainer:
    """The model and its steps; `state` is what a checkpoint holds."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(True)
        self.model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.state = {"model": self.model, "optimizer": self.optimizer}

    def step(self, step: int, rank: int, world: int, flag: bool = False) -> bool:
        """One step; returns whether any rank has raised its flag."""
        parameters = list(self.model.parameters())
        total = torch.zeros(sum(p.numel() for p in parameters) + 1, dtype=torch.int64)
        total[-1] = flag
        for part in range(rank, _PARTS, world):
            inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * _PARTS + part))
            loss = nn.functional.mse_loss(self.model(inputs), inputs.sum(1, keepdim=True))
            gradients = torch.autograd.grad(loss, parameters)
            total[:-1] += (torch.cat([g.flatten() for g in gradients]) * _ONE).round().long()
        if world > 1:
            dist.all_reduce(total)
        mean = total[:-1].double().div(_ONE * _PARTS).float()
        for parameter, gradient in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = gradient.view_as(parameter)
        self.optimizer.step()
        return bool(total[-1])

    def digest(self) -> str:
        """SHA-256 of the weights."""
        weights = b"".join(p.detach().numpy().tobytes() for p in self.model.parameters())
        return hashlib.sha256(weights).hexdigest()


def answer() -> None:
    """Tells digests of a run that nothing interrupts, which goes only as far as it is asked for."""
    trainer = Trainer()
    digests = {0: trainer.digest()}
    for line in sys.stdin:
        while int(line) > max(digests):
            for step in range(max(digests), max(digests) + EVERY):
                trainer.step(step, 0, 1)
            digests[step + 1] = trainer.digest()
        print(digests[int(line)], flush=True)


class Endless(IterableDataset[Any]):
    """What loaders read."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.zeros(8)


def loaded(workers: int) -> Iterator[Any]:
    """Batches from forked workers, which say who they are."""
    signal.signal(signal.SIGUSR1, lambda number, frame: print(f"{os.getpid()} heard SIGUSR1", flush=True))
    loader = DataLoader(
        Endless(),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="fork",
        worker_init_fn=lambda index: print(f"loader {os.getpid()}", flush=True),
    )
    return iter(loader)


def train(pace_s: float, loaders: int) -> None:
    """A worker's life."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(os.environ["HOLDFAST_JOB_DIR"])
    print(f"pid {os.getpid()} runner {os.environ['HOLDFAST_RUNNER_PID']}", flush=True)
    print(f"local rank {os.environ['LOCAL_RANK']} sees GPUs {os.environ.get('CUDA_VISIBLE_DEVICES')}", flush=True)
    trainer = Trainer()
    with Checkpointer.from_env() as ckpt:
        step = ckpt.load(trainer.state) or 0
        batches = loaded(loaders) if loaders else None
        over = False
        while not over:
            obey(folder, rank)
            if batches is not None:
                next(batches)
            asked = rank == 0 and (step + 1) % EVERY == 0 and (folder / "finish").exists()
            over = trainer.step(step, rank, world, asked)
            step += 1
            if rank == 0 and step % EVERY == 0:
                print(f"step {step} digest {trainer.digest()}", flush=True)
            if ckpt.should_save(step):
                ckpt.save(step, trainer.state)
            if ckpt.should_stop(step):
                break
            time.sleep(pace_s)
    dist.destroy_process_group()


def obey(folder: Path, rank: int) -> None:
    """Does what a file in the job's folder asks of this rank."""
    with contextlib.suppress(FileNotFoundError):
        (folder / f"raise-{rank}").unlink()
        raise RuntimeError(f"told to fail at rank {rank}")
    with contextlib.suppress(FileNotFoundError):
        (folder / f"away-{rank}").unlink()
        while True:
            time.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pace-s", type=float, default=0.05, help="rest after each step")
    parser.add_argument("--loaders", type=int, default=0, help="forked workers of each rank's DataLoader")
    parser.add_argument("--reference", action="store_true", help="only tell digests of an uninterrupted run")
    args = parser.parse_args()
    if args.reference:
        torch.set_num_threads(1)
        answer()
    else:
        train(args.pace_s, args.loaders)


if __name__ == "__main__":
    main()
