"""A DDP loop that saves by itself with torch_checkpointing's manager: at each save it waits, unless ASYNC is set.

STOPPED names a save that stands still on rank 1 in the first attempt, once its files are written and before its folder
gets its name. The loop trains on when it stands. Each rank notes the process that writes: none may outlive its attempt.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch_checkpointing import CheckpointManager
from torch_checkpointing.checkpoint_writer import CallbackArgs
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
from witness import ATTEMPT, OUT, RANK, UNDER_HOLDFAST, WORLD_SIZE, Sums, digest, end, saw

from holdfast.base.processes import state_of

STEPS, EVERY, BATCH = 35, 3, 4
STOPPED = os.environ.get("STOPPED", "")


def newest() -> Path | None:
    """A folder appears under its name when it is complete."""
    return max(OUT.glob("step-*"), default=None)


def written(save: CallbackArgs) -> None:
    """Called in the process that writes, before it waits for the other ranks."""
    (OUT / f"writer-{ATTEMPT}-{RANK}").write_text(str(os.getpid()))
    if ATTEMPT == 0 and STOPPED and STOPPED in save.path:
        (OUT / f"stopped-{RANK}").touch()
        if RANK == 1:
            signal.pause()


def until(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} was not there within 60 s")
        time.sleep(0.02)


def writers() -> list[str]:
    """The processes of earlier attempts that still live."""
    notes = [path for path in OUT.glob("writer-*") if int(path.name.split("-")[1]) < ATTEMPT]
    return [path.name for path in notes if state_of(int(path.read_text())) not in ("", "Z")]


def main() -> None:
    left = writers()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 1))
    model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    data, step = Sums(BATCH * WORLD_SIZE * STEPS), 0
    kinds = CheckpointManager.Config
    config = kinds.with_async_save() if "ASYNC" in os.environ else kinds.with_sync_save()
    config.pre_finalize_callback = written
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
        with manager.lock() if manager else nullcontext():  # not while a save copies them
            optimizer.step()
        step += 1
        if manager and step % EVERY == 0:
            now = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
            folder = OUT / f"step-{step:03d}"
            manager.save(str(folder), {**now, "step": step})
            if ATTEMPT == 0 and folder.name == STOPPED:
                until(OUT / f"stopped-{RANK}")
    if manager:
        manager.close()
    end(
        weights=digest(net.state_dict()),
        optimizer=digest(optimizer.state_dict()["state"]),
        rng=digest(torch.get_rng_state()),
        left=left,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
