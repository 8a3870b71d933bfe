"""A script that saves by itself, with torch alone: no checkpoint section, no Checkpointer."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "flows"))

from steady import EVERY, Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pace-s", type=float, default=0.05)
    pace_s = parser.parse_args().pace_s
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(os.environ["HOLDFAST_JOB_DIR"])
    print(f"pid {os.getpid()} runner {os.environ['HOLDFAST_RUNNER_PID']}", flush=True)
    trainer = Trainer()
    own = folder / "own"
    own.mkdir(exist_ok=True)
    saved = sorted(own.glob("step-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
    step = 0
    if saved:
        found = torch.load(saved[-1], weights_only=True)
        trainer.model.load_state_dict(found["model"])
        trainer.optimizer.load_state_dict(found["optimizer"])
        step = found["step"]
    over = False
    while not over:
        asked = rank == 0 and (step + 1) % EVERY == 0 and (folder / "finish").exists()
        over = trainer.step(step, rank, world, asked)
        step += 1
        if rank == 0 and step % EVERY == 0:
            print(f"step {step} digest {trainer.digest()}", flush=True)
            state = {"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict(), "step": step}
            torch.save(state, own / "draft")
            (own / "draft").rename(own / f"step-{step}.pt")
        time.sleep(pace_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
