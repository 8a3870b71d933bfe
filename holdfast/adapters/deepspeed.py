"""DeepSpeed's engine with ZeRO stage 1 or 2 in a Checkpointer's state.

    from holdfast.adapters.deepspeed import engine_state

    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    state = {"engine": engine_state(engine), "rng": RngState(), "data": loader}
    with Checkpointer.from_env() as ckpt:
        step = ckpt.load(state) or 0

The state has the module, this rank's partitions of the optimizer, the loss scaler, the schedule, and the engine's
counters. Save between two steps of the optimizer. A restart needs the same world size, as the partitions are a rank's.

The hooks are attributes of DeepSpeed; docs/guide/frameworks.md names the version that was tried.
"""

from __future__ import annotations

from typing import Any

import torch.distributed
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from ckpt.errors import ConfigError
from holdfast.adapters.parts import Values, warn_if_untried

__all__ = ["engine_state"]

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")
_NOT_STORED = ("loss_scaler", "param_slice_mappings")  # objects; the first is stored as its attributes


def engine_state(engine: Any) -> dict[str, Any]:
    """The parts of a DeepSpeed engine, for the state of a Checkpointer.

    Raises:
        ConfigError: the engine does not use ZeRO stage 1 or 2 on the device.
    """
    warn_if_untried("deepspeed", "0.19")
    optimizer = engine.optimizer
    if not isinstance(optimizer, DeepSpeedZeroOptimizer) or optimizer.cpu_offload:
        raise ConfigError(
            f"engine_state(): the engine's optimizer is {type(optimizer).__name__}, ZeRO stage "
            f"{engine.zero_optimization_stage()}; expected ZeRO stage 1 or 2 without offload"
        )
    parts = {
        "module": engine.module,
        "optimizer": Values(lambda: _optimizer_values(optimizer), lambda values: _put_optimizer(optimizer, values)),
        "counters": Values(
            lambda: {name: getattr(engine, name) for name in _COUNTERS}, lambda values: vars(engine).update(values)
        ),
    }
    if engine.lr_scheduler is not None:
        parts["schedule"] = engine.lr_scheduler
    return parts


def _optimizer_values(optimizer: Any) -> dict[str, Any]:
    stored = {key: value for key, value in optimizer.state_dict().items() if key not in _NOT_STORED}
    scaler = {key: value for key, value in vars(optimizer.loss_scaler).items() if isinstance(value, (bool, int, float))}
    stored["zero_stage"] = int(stored["zero_stage"])
    return {"zero": stored, "scaler": scaler, "world_size": torch.distributed.get_world_size()}


def _put_optimizer(optimizer: Any, values: dict[str, Any]) -> None:
    world = torch.distributed.get_world_size()
    if values["world_size"] != world:
        raise ConfigError(
            f"DeepSpeed: the checkpoint has the partitions of {values['world_size']} ranks, there are {world}; "
            "restart with the same number of ranks"
        )
    scaler = optimizer.loss_scaler
    optimizer.load_state_dict([{**values["zero"], "loss_scaler": scaler}] * world, load_from_fp32_weights=True)
    vars(scaler).update(values["scaler"])
