"""The cost of saves for training on one GPU: the milliseconds that save() blocks, and the step time with and without.

    PYTHONPATH=. python benchmarks/gpu.py [--gib 12] [--width 4096] [--steps 60] [--every 10]

Trains a model of linear layers with AdamW. Weights and optimizer state together are `--gib` large. They are saved to
memory every `--every` steps, in one run by Checkpointer.save, in another by torch's dcp.async_save with a pinned
stager. Prints JSON: {name: {value, unit, peer, ratio}}. Needs a GPU, and host memory of three times the state's size,
two thirds of it in /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from ckpt_bench.figures import Figure, as_json
from ckpt_bench.node import BenchNode
from ckpt_bench.saving import kept_stager

COPIES = 3  # the weights and AdamW's two moments
WARM_UP = 5
TARGET_STEP_S = 0.25  # the batch is as large as a step of this time needs

Save = Callable[[int], None]


class Training:
    """A model, its optimizer, and steps on random data."""

    def __init__(self, gib: float, width: int) -> None:
        layer_bytes = width * width * 4
        layers = max(1, round(gib * (1 << 30) / layer_bytes / COPIES))
        self.model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers))).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.nbytes = layers * layer_bytes * COPIES
        self._data = torch.randn(256, width, device="cuda")
        for _ in range(WARM_UP):
            self.step()
        torch.cuda.synchronize()
        started = time.perf_counter()
        self.step()
        torch.cuda.synchronize()
        times = math.ceil(TARGET_STEP_S / (time.perf_counter() - started))
        self._data = torch.randn(256 * min(times, 64), width, device="cuda")

    @property
    def tensors(self) -> int:
        return COPIES * len(list(self.model.parameters()))

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def step(self) -> None:
        loss = self.model(self._data).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps: int, every: int, save: Save | None) -> tuple[float, list[float]]:
        """The average seconds of a step, with saves, and the seconds that each save blocked."""
        blocked = []
        self.step()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for number in range(1, steps + 1):
            self.step()
            if save and number % every == 0:
                before = time.perf_counter()
                save(number)
                blocked.append(time.perf_counter() - before)
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / steps, blocked


class Holdfast:
    """Checkpointer.save with an agent, on this node."""

    def __init__(self, training: Training, node: BenchNode) -> None:
        self.checkpointer = node.start()
        self._training = training
        self._last = 0
        self.checkpointer.load(training.state)
        node.wait_for_memory()
        for _ in range(2):  # both slots are mapped and pinned
            self.save(1)
            node.wait_for("memory", self._last)
            torch.cuda.synchronize()

    def save(self, _: int) -> None:
        self._last += 1
        self.checkpointer.save(self._last, self._training.state)


class Dcp:
    """dcp.async_save to /dev/shm with a stager that keeps its pinned memory."""

    def __init__(self, training: Training, folder: Path, stager: DefaultStager) -> None:
        self._training, self._folder, self._stager = training, folder, stager
        self._running: Any = None
        self.save(0)

    def save(self, _: int) -> None:
        self.settle()  # torch allows one save at a time
        state = {"model": self._training.model.state_dict(), "optimizer": self._training.optimizer.state_dict()}
        self._running = dcp.async_save(state, checkpoint_id=self._folder, async_stager=self._stager, no_dist=True)

    def settle(self) -> None:
        if self._running is not None:
            getattr(self._running, "upload_completion", self._running).result()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=12.0, help="size of weights and optimizer state")
    parser.add_argument("--width", type=int, default=4096, help="a layer has width x width weights: 64 MiB by default")
    parser.add_argument("--steps", type=int, default=60, help="number of steps of each run")
    parser.add_argument("--every", type=int, default=10, help="steps between saves")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: torch sees no GPU; run it on a machine with one", file=sys.stderr)
        return 1
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # there is one process
    training = Training(args.gib, args.width)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as memory:
        figures = measure(training, Path(memory), args.steps, args.every)
    measured = {"gpu": torch.cuda.get_device_name(), "bytes": training.nbytes, "tensors": training.tensors}
    print(json.dumps(measured | as_json(figures), indent=1))
    return 0


def measure(training: Training, memory: Path, steps: int, every: int) -> list[Figure]:
    """Measures both, between two runs without saves, which show whether the GPU's clock has changed."""
    (memory / "ram").mkdir(mode=0o700)
    first_s, _ = training.run(steps, every, None)
    node = BenchNode(memory / "ram", memory / "shared")
    try:
        ours = Holdfast(training, node)
        ours_s, blocked = training.run(steps, every, ours.save)
        failed = ours.checkpointer.failed_saves
    finally:
        node.close()
    for file in (memory / "ram").iterdir():
        file.unlink()
    options = StagingOptions(
        use_pinned_memory=True, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=True
    )
    with kept_stager(options) as stager:
        theirs = Dcp(training, memory / "dcp", stager)
        theirs_s, their_blocked = training.run(steps, every, theirs.save)
        theirs.settle()
    last_s, _ = training.run(steps, every, None)
    without = {"no saves, before": first_s, "no saves, after": last_s}
    peers = {"dcp.async_save, pinned stager": statistics.median(their_blocked) * 1000}
    return [
        Figure(name="save() blocks", value=statistics.median(blocked) * 1000, unit="ms", peers=peers),
        Figure(name="longest save()", value=max(blocked) * 1000, unit="ms",
               peers={"dcp.async_save, pinned stager": max(their_blocked) * 1000}),
        Figure(name=f"step, saves every {every}", value=ours_s * 1000, unit="ms",
               peers={name: value * 1000 for name, value in without.items()}
               | {"dcp.async_save, pinned stager": theirs_s * 1000}),
        Figure(name="failed saves", value=failed, unit=""),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
