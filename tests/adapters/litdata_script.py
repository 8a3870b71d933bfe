"""A loop over litData's chunks in a bucket, as docs/guide/data.md shows it.

With a folder as its argument the script writes the chunks instead, and prints why the order's options are refused.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from litdata.streaming import Cache, downloader
from torch import nn
from torch.utils.data import DataLoader

from ckpt import CheckpointError
from holdfast import Checkpointer, ElasticLoader, ElasticSampler, RngState, batch_plan
from holdfast.adapters.litdata import ChunkDataset

SAMPLES, CHUNK, GLOBAL_BATCH, STEPS = 96, 12, 8, 24  # two epochs

downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # the test's server has no TLS


def write(folder: str) -> None:
    cache = Cache(folder, chunk_size=CHUNK)
    for index in range(SAMPLES):
        cache[index] = {"id": index, "x": torch.full((16,), float(index))}
    cache.done()
    cache.merge()
    try:
        ChunkDataset(folder, shuffle=True, seed=3)
    except CheckpointError as error:
        print(error)


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "twice": 2 * sample["id"]}


def main() -> None:
    from witness import end, saw

    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    plan = batch_plan(GLOBAL_BATCH, max_micro_batch=2)
    dataset = ChunkDataset(os.environ["URL"], transform=double)
    sampler = ElasticSampler(dataset, plan, seed=1, shards=dataset.shards)
    loader = ElasticLoader(DataLoader(dataset, plan.micro_batch, sampler=sampler, num_workers=1))
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optimizer": optimizer, "data": loader, "rng": RngState()}
    with Checkpointer.from_env() as ckpt:
        step = ckpt.load(state) or 0
        for batch in loader.endless():
            assert torch.equal(batch["twice"], 2 * batch["id"]) and torch.equal(batch["x"][:, 0], batch["id"].float())
            saw(step, batch["id"])
            (model(batch["x"]).square().mean() / plan.accumulation).backward()
            if not loader.ends_step:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if ckpt.should_save(step):
                ckpt.save(step, state)
            if ckpt.should_stop(step) or step == STEPS:
                break
    end(step=step, ranks=plan.world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write(sys.argv[1])
    else:
        main()
