"""Trains a small linear regression with DDP and saves its state with Holdfast."""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist

from holdfast import Checkpointer

STEPS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learning-rate", type=float, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    state = {"model": model, "optimizer": optimizer}
    with Checkpointer.from_env() as ckpt:
        step = ckpt.load(state) or 0
        while step < STEPS:
            inputs = torch.randn(32, 8)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if ckpt.should_save(step) or step == STEPS:
                ckpt.save(step, state)
            if ckpt.should_stop(step):
                break
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {loss.item():.4f} at step {step}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
