"""State that is each rank's own shard: it loads at the world size of the save, and is refused at another one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from world_kit import World

from ckpt import Checkpointer
from ckpt.errors import StateError
from ckpt.worker.load.per_rank import Worlds

Make = Callable[[], torch.nn.Module]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.stop()


def fsdp1(strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD) -> torch.nn.Module:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 3))
    return FullyShardedDataParallel(
        net, device_id=torch.device("cpu"), use_orig_params=True, sharding_strategy=strategy
    )


def trained(make: Make) -> tuple[dict[str, Any], Callable[[], None]]:
    warnings.simplefilter("ignore")
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()

    return {"model": model, "optimizer": optimizer}, step


def save(make: Make, ckpt: Checkpointer, rank: int) -> None:
    state, step = trained(make)
    step()
    ckpt.save(1, state)


def load(make: Make, ckpt: Checkpointer, rank: int) -> str:
    """What is wrong, and empty once a step has been made with the loaded state."""
    state, step = trained(make)
    before = {key: value.clone() for key, value in state["model"].state_dict().items()}
    try:
        ckpt.load(state)
    except StateError as error:
        assert all(torch.equal(value, before[key]) for key, value in state["model"].state_dict().items())
        return str(error)
    step()
    return ""


def test_shards_of_fsdp1_load_at_the_world_size_of_their_save_only(world: World) -> None:
    world.run(2, partial(save, fsdp1))
    assert world.run(2, partial(load, fsdp1)) == ["", ""]
    for size in (1, 3):
        for message in world.run(size, partial(load, fsdp1)):
            assert "state['optimizer']: each of 2 ranks has saved its own shards" in message
            assert f"and {size} ranks load: run it with 2 ranks, or change to FSDP2" in message


def test_what_fsdp1_does_not_shard_loads_at_any_world_size(world: World) -> None:
    make = partial(fsdp1, ShardingStrategy.NO_SHARD)
    world.run(2, partial(save, make))
    assert world.run(3, partial(load, make)) == ["", "", ""]


def check(shapes: list[tuple[int, ...]], *parameters: tuple[int, ...], saved: int = 4, live: int = 2) -> None:
    made = [torch.nn.Parameter(torch.zeros(shape)) for shape in parameters]
    Worlds(saved=saved, live=live, state={}).check_optimizer(made, {0: shapes}, ("o",))


@pytest.mark.parametrize("shapes", [[(17,)], [(), (17,), (17,)]])
def test_flat_shards_of_any_optimizer_are_refused_at_another_world_size(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(StateError, match=r"shape \[17\] for parameter 0, which has \[34\] here"):
        check(shapes, (34,))
    check(shapes, (34,), saved=2)


@pytest.mark.parametrize(
    ("shapes", "parameters"),
    [
        ([(), (6,), (6,)], [(6,)]),  # as the parameter
        ([(6, 1), (1, 3)], [(6, 3)]),  # rows and columns, as Adafactor's
        ([(3, 3)], [(3,)]),  # a preconditioner
        ([(6,), (2,)], [(6,)]),  # quantised, with a scale for each block
        ([(24,)], [(6,), (6, 3)]),  # one vector for all parameters, as L-BFGS's
        ([()], [(6,)]),
        ([], [(6,)]),
    ],
)
def test_state_that_does_not_depend_on_the_world_size_is_no_shard(
    shapes: list[tuple[int, ...]], parameters: list[tuple[int, ...]]
) -> None:
    check(shapes, *parameters)
