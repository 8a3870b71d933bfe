"""The training script of recovery_peers.py: one small model, its state kept in one of three ways.

    recovery_peers_train.py {holdfast,files,torchft} STEPS_DIR [STATE_FILE]

Every rank appends a line to STEPS_DIR/NODE-PID for each step: its number, its start and its end (Unix seconds).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

SAVE_EVERY_STEPS = 5
TRAINING_NODES = 3
_COMPUTE_S = 0.05  # of a step, beside the small model's own
_WIDTH = 256
_BATCH = 16


class Training:
    """A model, its optimizer, and a log of the finished steps.

    Args:
        log: the file to append to.
        wrap: gives the module to call for training.
    """

    def __init__(self, log: Path, wrap: Callable[[nn.Module], nn.Module]) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
        self.optimizer: Any = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._trained = wrap(self.model)
        self._log = log.open("a", buffering=1)

    def step(self, number: int, reached: Callable[[], int] | None = None) -> None:
        """Trains one step and logs it. `reached` gives the number of committed steps, where a step may fail."""
        begun_s = time.time()
        self.optimizer.zero_grad()
        time.sleep(_COMPUTE_S)
        x = torch.randn(_BATCH, _WIDTH)
        (self._trained(x) - x).square().mean().backward()
        self.optimizer.step()
        done = number if reached is None else reached()
        if done >= number:  # torchft's can be greater: it has just taken over another replica's state
            self._log.write(f"{done} {begun_s} {time.time()}\n")


def with_holdfast(log: Path) -> None:
    from holdfast import Checkpointer

    dist.init_process_group("gloo")
    training = Training(log, nn.parallel.DistributedDataParallel)
    state = {"model": training.model, "optimizer": training.optimizer}
    with Checkpointer.from_env() as ckpt:
        step = ckpt.load(state) or 0
        while not ckpt.should_stop(step):
            step += 1
            training.step(step)
            if ckpt.should_save(step):
                ckpt.save(step, state)


def with_files(log: Path, state_file: Path) -> None:
    """Rank 0 saves; all load. The file lies in this machine's memory, the fastest place that all ranks see."""
    dist.init_process_group("gloo")
    training = Training(log, nn.parallel.DistributedDataParallel)
    step = 0
    if state_file.exists():
        saved = torch.load(state_file)
        step = saved["step"]
        training.model.load_state_dict(saved["model"])
        training.optimizer.load_state_dict(saved["optimizer"])
    while True:
        step += 1
        training.step(step)
        if dist.get_rank() == 0 and step % SAVE_EVERY_STEPS == 0:
            partial = state_file.with_suffix(".partial")
            state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
            torch.save({"step": step, **state}, partial)
            partial.replace(state_file)


def with_torchft(log: Path) -> None:
    """As torchft's train_ddp.py, with its time-outs. The fourth replica is a spare, whose gradients do not count."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
    from torchft.manager import WorldSizeMode

    training: Training

    def load(state: dict[str, Any]) -> None:
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])

    def state_dict() -> dict[str, Any]:
        return {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=TRAINING_NODES,
        world_size_mode=WorldSizeMode.FIXED_WITH_SPARES,
        load_state_dict=load,
        state_dict=state_dict,
        replica_id=os.environ["HOLDFAST_NODE"],
        timeout=timedelta(seconds=30),
    )
    training = Training(log, lambda model: DistributedDataParallel(manager, model))
    training.optimizer = Optimizer(manager, training.optimizer)
    while True:
        training.step(manager.current_step() + 1, manager.current_step)


def main() -> None:
    torch.set_num_threads(1)
    keeper, steps_dir = sys.argv[1], Path(sys.argv[2])
    log = steps_dir / f"{os.environ['HOLDFAST_NODE']}-{os.getpid()}"
    if keeper == "holdfast":
        with_holdfast(log)
    elif keeper == "files":
        with_files(log, Path(sys.argv[3]))
    else:
        with_torchft(log)


if __name__ == "__main__":
    main()
