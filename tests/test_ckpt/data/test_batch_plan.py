"""The global batch is kept, or changed by a rule that the caller states."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckpt.data import batch_plan
from ckpt.errors import ConfigError

numbers = st.integers(1, 300)


@given(batch=numbers, world=numbers, most=st.none() | numbers)
def test_a_plan_keeps_the_global_batch_or_refuses(batch: int, world: int, most: int | None) -> None:
    if batch % world:
        with pytest.raises(ConfigError, match=f"{batch} does not divide among {world} ranks; expected a multiple of"):
            batch_plan(batch, world, max_micro_batch=most, env={})
        return
    plan = batch_plan(batch, world, max_micro_batch=most, env={})
    assert plan.global_batch == batch == plan.micro_batch * plan.accumulation * world
    assert plan.rank_batch * world == batch and plan.lr_factor == 1.0
    larger = [
        m for m in range(plan.micro_batch + 1, min(most or batch, plan.rank_batch) + 1) if not plan.rank_batch % m
    ]
    assert plan.micro_batch <= (most or batch) and not larger


@given(batch=numbers, world=numbers, micro=st.none() | st.integers(1, 9))
def test_rounding_takes_the_multiple_that_its_rule_names(batch: int, world: int, micro: int | None) -> None:
    unit = world * (micro or 1)
    plans = {
        rule: batch_plan(batch, world, micro_batch=micro, rounding=rule, env={}).global_batch
        for rule in ("down", "up", "nearest")
    }
    assert all(size % unit == 0 and size > 0 for size in plans.values())
    assert plans["up"] - unit < batch <= plans["up"]
    assert plans["down"] <= batch < plans["down"] + unit or plans["down"] == unit > batch
    assert plans["nearest"] in plans.values() and abs(plans["nearest"] - batch) <= abs(plans["up"] - batch)


def test_the_learning_rate_follows_a_batch_that_was_rounded() -> None:
    assert batch_plan(100, 64, rounding="up", env={}).lr_factor == 1.0
    assert batch_plan(100, 64, rounding="up", lr_scaling="linear", env={}).lr_factor == 1.28
    assert batch_plan(16, 64, rounding="up", lr_scaling="sqrt", env={}).lr_factor == 2.0


def test_the_recipe_of_a_size_overrides_the_script() -> None:
    env = {"WORLD_SIZE": "4", "HOLDFAST_SCALE": json.dumps({"global_batch": 64, "micro_batch": 8, "lr": 3e-4})}
    plan = batch_plan(32, max_micro_batch=16, lr_scaling="linear", env=env)
    assert (plan.global_batch, plan.world_size, plan.micro_batch, plan.accumulation) == (64, 4, 8, 2)
    assert plan.lr_factor == 2.0 and plan.recipe["lr"] == 3e-4


def test_the_world_size_comes_from_the_environment() -> None:
    assert batch_plan(32, env={}).world_size == 1
    assert batch_plan(32, env={"WORLD_SIZE": "8"}).rank_batch == 4


@pytest.mark.parametrize(
    ("arguments", "env", "message"),
    [
        ({"global_batch": 0}, {}, "batch_plan: global_batch: got 0"),
        ({"global_batch": 2.5}, {}, "global_batch: got 2.5"),
        ({"global_batch": True}, {}, "global_batch: got True"),
        ({"world_size": 0}, {}, "world_size: got 0"),
        ({"micro_batch": -1}, {}, "micro_batch: got -1"),
        ({"micro_batch": 4, "max_micro_batch": 2}, {}, "got 4, expected at most max_micro_batch"),
        ({"world_size": 2, "micro_batch": 5}, {}, "does not divide among 2 ranks with micro_batch 5"),
        ({"rounding": "away"}, {}, "rounding: got 'away'"),
        ({"lr_scaling": "cube"}, {}, "lr_scaling: got 'cube'"),
        ({}, {"WORLD_SIZE": "many"}, "WORLD_SIZE='many'"),
        ({}, {"HOLDFAST_SCALE": "[1]"}, "expected a JSON object"),
        ({}, {"HOLDFAST_SCALE": "{"}, "expected a JSON object"),
        ({}, {"HOLDFAST_SCALE": '{"micro_batch": "8"}'}, "elastic.scale: micro_batch: got '8'"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict[str, Any], env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        batch_plan(**{"global_batch": 32, **arguments}, env=env)
