"""A script that knows nothing of Holdfast: DDP, and a file of its own that it resumes from."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from witness import OUT, RANK, WORLD_SIZE, Sums, digest, end, saw

STEPS, FILE = 30, OUT / "ckpt.pt"


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 1), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = 0
    if FILE.exists():
        saved = torch.load(FILE)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    data = Sums(8 * STEPS)
    while step < STEPS:
        ids = range(8 * step + RANK, 8 * step + 8, WORLD_SIZE)
        saw(step, ids)
        x, y = (torch.stack(each) for each in list(zip(*(data[i] for i in ids), strict=True))[1:])
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if RANK == 0 and step % 5 == 0:
            part = FILE.with_suffix(".part")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
            os.replace(part, FILE)
        dist.barrier()
    end(weights=digest(model.state_dict()), optimizer=digest(optimizer.state_dict()["state"]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
