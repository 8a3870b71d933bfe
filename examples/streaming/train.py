"""Trains from shards in a bucket; the first step runs after one shard is there. See docs/guide/data.md."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from shards import BucketReader, ShardDataset
from torch import nn
from torch.utils.data import DataLoader

from holdfast import Checkpointer, ElasticLoader, ElasticSampler, batch_plan


def main(url: str, steps: int) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    fetch = BucketReader(url, os.environ.get("AWS_REGION", "us-east-1"), os.environ.get("AWS_ENDPOINT_URL_S3"))
    dataset = ShardDataset(url, fetch, Path(os.environ["HOLDFAST_CACHE_DIR"]), limit_bytes=200 << 30)
    fetch.hold(dataset.names)
    plan = batch_plan(global_batch=8, max_micro_batch=4)
    sampler = ElasticSampler(dataset, plan, seed=1, shards=dataset.shards)
    loader = ElasticLoader(DataLoader(dataset, plan.micro_batch, sampler=sampler, generator=torch.Generator()))
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"model": model, "optimizer": optimizer, "data": loader}
    pace_s = float(os.environ.get("PACE_S", "0"))  # for the test: makes a step long
    seen = os.environ.get("SEEN")  # a file prefix: which samples each step saw, for the test

    with Checkpointer.from_env() as ckpt:
        step = ckpt.load(state) or 0
        ids: list[int] = []
        for indices, samples in loader.endless():
            ids += indices.tolist()
            loss = (model(samples) - samples.sum(1, keepdim=True)).square().mean() / plan.accumulation
            loss.backward()
            if not loader.ends_step:
                continue
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            time.sleep(pace_s)
            if seen:
                with open(f"{seen}-{rank}", "a") as file:
                    print(step, *ids, file=file)
            ids = []
            if rank == 0:
                print(f"step {step} loss {loss.item():.5f}", flush=True)
            if ckpt.should_save(step):
                ckpt.save(step, state)
            if ckpt.should_stop(step) or step >= steps:
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
