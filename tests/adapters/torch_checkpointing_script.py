"""A DDP loop that saves by itself with torch_checkpointing's manager, while it trains no step."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch_checkpointing import CheckpointManager
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
from witness import OUT, RANK, UNDER_HOLDFAST, WORLD_SIZE, Sums, digest, end, saw

STEPS, EVERY, BATCH = 35, 3, 4


def newest() -> Path | None:
    """A folder appears under its name when it is complete."""
    return max(OUT.glob("step-*"), default=None)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 1))
    model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data, step = Sums(BATCH * WORLD_SIZE * STEPS), 0
    config = CheckpointManager.Config.with_sync_save()
    config.storage_config = LocalFileSystemStorageConfig(use_direct_io=False)  # which fails at a file's odd end
    manager = CheckpointManager(config) if UNDER_HOLDFAST else None
    if manager and (folder := newest()):
        live = {"model": net.state_dict(), "optimizer": None, "rng": None, "step": None}
        saved = manager.load(str(folder), into=live)
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["rng"])
        step = saved["step"]
    while step < STEPS:
        first = BATCH * (WORLD_SIZE * step + RANK)
        ids = range(first, first + BATCH)
        saw(step, ids)
        x, y = (torch.stack(part) for part in zip(*(data[index][1:] for index in ids), strict=True))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        step += 1
        if manager and step % EVERY == 0:
            now = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
            manager.save(str(OUT / f"step-{step:03d}"), {**now, "step": step})
    if manager:
        manager.close()
    end(
        weights=digest(net.state_dict()),
        optimizer=digest(optimizer.state_dict()["state"]),
        rng=digest(torch.get_rng_state()),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
