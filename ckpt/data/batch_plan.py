"""How a global batch is divided among the ranks: micro-batch and gradient accumulation."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, get_args

from ckpt.errors import ConfigError
from holdfast.base.environment import Variable

Rounding = Literal["down", "up", "nearest"]
LrScaling = Literal["linear", "sqrt"]


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """One step's samples: global_batch = micro_batch * accumulation * world_size."""

    global_batch: int  # samples of one optimizer step, over all ranks
    world_size: int
    micro_batch: int  # samples of one forward and backward pass of one rank
    accumulation: int  # passes before the optimizer's step
    lr_factor: float = 1.0  # multiply the learning rate by this
    recipe: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))  # elastic.scale of this size

    @property
    def rank_batch(self) -> int:
        """Samples of one step on one rank."""
        return self.micro_batch * self.accumulation


def batch_plan(
    global_batch: int,
    world_size: int | None = None,
    *,
    micro_batch: int | None = None,
    max_micro_batch: int | None = None,
    rounding: Rounding | None = None,
    lr_scaling: LrScaling | None = None,
    env: Mapping[str, str] = os.environ,
) -> BatchPlan:
    """Divides a global batch among the ranks.

    The global batch stays the same at every world size, so that the optimizer takes the same steps. In an elastic job,
    the keys `global_batch`, `micro_batch` and `max_micro_batch` of the job file's `elastic.scale` for the job's size
    override these arguments. All its keys are in the plan's `recipe`.

    Args:
        global_batch: samples of one optimizer step, over all ranks.
        world_size: number of ranks; default: WORLD_SIZE, or 1.
        micro_batch: samples of one pass on one rank. Default: the largest that divides a rank's part of the global
            batch and is at most `max_micro_batch`.
        max_micro_batch: what fits into an accelerator's memory, in samples; default: no limit.
        rounding: what to do with a global batch that is not a multiple of world_size (times `micro_batch`, if given).
            None refuses it; "down", "up" and "nearest" (half goes up) take another multiple, at least one.
        lr_scaling: how the plan's `lr_factor` follows a global batch that rounding or the recipe has changed:
            "linear" is new / old, "sqrt" its square root. None leaves it at 1.
        env: the environment.

    Raises:
        ConfigError: a number is not a positive integer, or the global batch does not divide and `rounding` is None.
    """
    recipe = _recipe(env)
    asked = _positive("global_batch", global_batch)
    numbers = {"global_batch": asked, "micro_batch": micro_batch, "max_micro_batch": max_micro_batch}
    for key in numbers:
        if (value := recipe.get(key, numbers[key])) is not None:
            value = _positive(key, value, "elastic.scale" if key in recipe else "batch_plan")
        numbers[key] = value
    if world_size is None:
        text = env.get("WORLD_SIZE", "1")
        world_size = int(text) if text.isdecimal() else 0
        if world_size < 1:
            raise ConfigError(f"environment: WORLD_SIZE={text!r}, expected a whole number of at least 1")
    world_size = _positive("world_size", world_size)
    for name, chosen, kinds in (("rounding", rounding, Rounding), ("lr_scaling", lr_scaling, LrScaling)):
        if chosen is not None and chosen not in get_args(kinds):
            raise ConfigError(f"batch_plan: {name}: got {chosen!r}, expected one of {list(get_args(kinds))} or None")
    fixed, most = numbers["micro_batch"], numbers["max_micro_batch"]
    if fixed is not None and most is not None and fixed > most:
        raise ConfigError(f"batch_plan: micro_batch: got {fixed}, expected at most max_micro_batch ({most})")
    batch = _whole(int(numbers["global_batch"] or 0), world_size * (fixed or 1), world_size, fixed, rounding)
    rank_batch = batch // world_size
    micro = fixed or _largest_divisor(rank_batch, most or rank_batch)
    ratio = batch / asked
    factor = {"linear": ratio, "sqrt": math.sqrt(ratio)}[lr_scaling] if lr_scaling else 1.0
    return BatchPlan(
        global_batch=batch,
        world_size=world_size,
        micro_batch=micro,
        accumulation=rank_batch // micro,
        lr_factor=factor,
        recipe=MappingProxyType(recipe),
    )


def _recipe(env: Mapping[str, str]) -> dict[str, Any]:
    text = env.get(Variable.SCALE, "{}")
    try:
        recipe = json.loads(text)
    except ValueError:
        recipe = None
    if not isinstance(recipe, dict):
        raise ConfigError(f"environment: {Variable.SCALE}={text!r:.200}, expected a JSON object")
    return recipe


def _positive(name: str, value: object, where: str = "batch_plan") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{where}: {name}: got {value!r:.100}, expected a whole number of at least 1")
    return value


def _whole(batch: int, unit: int, world_size: int, micro_batch: int | None, rounding: Rounding | None) -> int:
    """The batch as a multiple of `unit`."""
    down, rest = batch - batch % unit, batch % unit
    if rest == 0:
        return batch
    if rounding is None:
        ranks = f"{world_size} ranks" + (f" with micro_batch {micro_batch}" if micro_batch else "")
        near = f"{down} or {down + unit}" if down else f"{unit}"
        raise ConfigError(
            f"batch_plan: global_batch: {batch} does not divide among {ranks}; expected a multiple of {unit}, such as "
            f"{near}; or say with rounding= how to round"
        )
    upwards = rounding == "up" or (rounding == "nearest" and 2 * rest >= unit)
    return down + unit if upwards or not down else down


def _largest_divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`."""
    if most >= number:
        return number
    small = (d for d in range(1, math.isqrt(number) + 1) if number % d == 0)
    return max(divisor for d in small for divisor in (d, number // d) if divisor <= most)
