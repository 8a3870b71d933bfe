"""DeepSpeed with ZeRO on the CPU. STAGE is 1 or 2; with FP16 its loss scaler skips steps."""

from __future__ import annotations

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader
from witness import UNDER_HOLDFAST, Sums, digest, end, saw

from holdfast import Checkpointer, ElasticLoader, ElasticSampler, RngState, batch_plan
from holdfast.adapters.deepspeed import engine_state

STEPS = 35
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled for minutes


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1)
    deepspeed.init_distributed("gloo")
    deepspeed.get_accelerator().is_fp16_supported = lambda: True  # torch has fp16 on CPUs without instructions for it
    fp16 = "FP16" in os.environ
    plan = batch_plan(global_batch=16, max_micro_batch=4)
    net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 1))
    config = {
        "train_micro_batch_size_per_gpu": plan.micro_batch, "gradient_accumulation_steps": plan.accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}, "steps_per_print": 1 << 30,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 20}}, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": int(os.environ.get("STAGE", "1"))}, "zero_force_ds_cpu_optimizer": False,
        "fp16": {"enabled": fp16, "initial_scale_power": 20, "loss_scale_window": 4, "hysteresis": 1},
    }  # fmt: skip
    engine, optimizer, _, schedule = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    sampler = ElasticSampler(Sums(), plan, seed=1)
    loader = ElasticLoader(DataLoader(Sums(), plan.micro_batch, sampler=sampler, generator=torch.Generator()))
    state = {"engine": engine_state(engine), "data": loader, "rng": RngState()}
    kind = torch.float16 if fp16 else torch.float32

    def train(step: int, ckpt: Checkpointer | None) -> None:
        for ids, x, y in loader.endless():
            saw(step, ids)
            engine.backward((engine(x.to(kind)) - y.to(kind)).float().square().mean())
            engine.step()
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
        partitions=digest(optimizer.optimizer.state_dict()["state"], optimizer.single_partition_of_fp32_groups),
        scaler={key: value for key, value in vars(optimizer.loss_scaler).items() if isinstance(value, (int, float))},
        schedule=schedule.get_last_lr(),
        counters=[engine.global_steps, engine.micro_steps, engine.skipped_steps, engine.global_samples],
    )


if __name__ == "__main__":
    main()
