"""An accelerate loop as docs/guide/frameworks.md shows it."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, set_seed
from torch import nn
from torch.utils.data import DataLoader
from witness import UNDER_HOLDFAST, Sums, digest, end, saw

from holdfast import Checkpointer, ElasticLoader, ElasticSampler, RngState, batch_plan

STEPS = 35


def main() -> None:
    torch.set_num_threads(1)
    plan = batch_plan(global_batch=16, max_micro_batch=4)
    exact = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=plan.accumulation, kwargs_handlers=[exact])
    set_seed(1)
    net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 1))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 2 * STEPS)
    model, optimizer, schedule = accelerator.prepare(net, adam, cosine)
    sampler = ElasticSampler(Sums(), plan, seed=1)
    loader = ElasticLoader(DataLoader(Sums(), plan.micro_batch, sampler=sampler))
    state = {"model": model, "optimizer": optimizer, "schedule": schedule, "data": loader, "rng": RngState()}

    def train(step: int, ckpt: Checkpointer | None) -> None:
        for ids, x, y in loader.endless():
            saw(step, ids)
            with accelerator.accumulate(model):
                accelerator.backward((model(x) - y).square().mean())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if not loader.ends_step:
                continue
            step += 1
            if ckpt and ckpt.should_save(step):
                ckpt.save(step, state)
            if (ckpt and ckpt.should_stop(step)) or step == STEPS:
                break

    if UNDER_HOLDFAST:
        with Checkpointer.from_env() as ckpt:
            train(ckpt.load(state) or 0, ckpt)
    else:
        train(0, None)
    end(
        weights=digest(net.state_dict()),
        optimizer=digest(adam.state_dict()["state"]),
        rng=digest(torch.get_rng_state()),
        schedule=schedule.get_last_lr(),
        position=loader.state_dict(),
    )
    accelerator.end_training()


if __name__ == "__main__":
    main()
