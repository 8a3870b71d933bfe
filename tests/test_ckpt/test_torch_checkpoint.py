"""What the tests of torch's distributed checkpoints expect of a storage, expected of ours, in one start of real ranks.

Torch does not ship those tests. Their behaviours: tensors load in any layout and at any world size; a model saved under
one kind of parallelism loads under another; objects, nested values, shared and strided tensors come back; a load may be
partial, and says what is missing; a rank that fails makes the save fail on all ranks, and the next save works.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.parallel import DistributedDataParallel
from trainer_kit import settle
from world_kit import World, needs_torch_2_7, placed

from ckpt import Checkpointer
from ckpt.errors import StateError

Layout = tuple[DeviceMesh, list[Any]]
EVERYTHING = 50  # the step that Checkpointer saves


def reader(ckpt: Checkpointer, step: int) -> Any:
    """Of a step that is in the shared tier by now."""
    settle(ckpt)
    return ckpt.dcp_reader(step)


def whole(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in state.items()}


def differing(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    found = whole(found)
    return [
        key
        for key, value in expected.items()
        if type(found[key]) is not type(value)
        or not (torch.equal(found[key], value) if isinstance(value, torch.Tensor) else found[key] == value)
    ]


# layouts


def layouts() -> dict[str, Layout]:
    size = dist.get_world_size()
    line, grid = init_device_mesh("cpu", (size,)), init_device_mesh("cpu", (2, size // 2))
    return {
        "rows": (line, [Shard(0)]),
        "columns": (line, [Shard(1)]),
        "same": (line, [Replicate()]),
        "rows twice": (grid, [Shard(0), Shard(0)]),
        "blocks": (grid, [Shard(1), Shard(0)]),
        "hybrid": (grid, [Replicate(), Shard(0)]),
        "halves": (grid, [Shard(1), Replicate()]),
        "right to left": (grid, [_StridedShard(0, split_factor=grid.size(1)), Shard(0)]),
        "some ranks": (DeviceMesh("cpu", list(range(size // 2))), [Shard(0)]),
    }


def tensors_in(*, saved: bool, fill: bool) -> dict[str, DTensor]:
    """A tensor for each pair of layouts and each shape, in the first layout when saved, in the second when loaded."""
    found, known = {}, layouts()
    for (a, b), shape in itertools.product(itertools.product(known, known), [(7, 5), (1, 5), (0, 5)]):
        whole = torch.arange(shape[0] * 5.0).reshape(shape) if fill else torch.zeros(shape)
        found[f"{a} to {b} {shape}"] = placed(whole, *known[a if saved else b])
    return found


def wrong(loaded: dict[str, DTensor]) -> list[str]:
    expected = tensors_in(saved=False, fill=True)
    return [key for key in expected if not torch.equal(loaded[key].to_local(), expected[key].to_local())]


# models


def model_of(kind: str, seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    size = dist.get_world_size()
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ReLU(), torch.nn.Linear(10, 4))
    grid = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("data", "tensor"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    match kind:
        case "FSDP":
            fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
        case "HSDP":
            fully_shard(model, mesh=grid)
        case "FSDP and TP":
            parallelize_module(model, grid["tensor"], plan)
            fully_shard(model, mesh=grid["data"])
        case "DDP":
            model = DistributedDataParallel(model)
    groups = [{"params": [p for p in model.parameters() if p.ndim == n], "lr": n / 100} for n in (1, 2)]
    optimizer = torch.optim.AdamW(groups, amsgrad=True)
    torch.manual_seed(1)
    model(torch.randn(3, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


KINDS = ["FSDP", "HSDP", "FSDP and TP", "DDP"]
STEP_OF = {kind: step for step, kind in enumerate(KINDS, start=10)}


def flat(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A training by torch's names, which are the same under every parallelism."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    return {"model": model_state, "optimizer": optimizer_state}


Trained = dict[str, dict[str, dict[str, Any]]]  # by kind: whole tensors and values of the model and the optimizer


def load_model(ckpt: Checkpointer, saved: str, kind: str, trained: Trained) -> list[str]:
    """Loads one kind of model into another; what differs from what was saved."""
    model, optimizer = model_of(kind, seed=2)
    state = flat(model, optimizer)
    dcp.load(state, storage_reader=reader(ckpt, STEP_OF[saved]))
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
    )
    found = flat(model, optimizer)
    return [f"{saved} to {kind}: {key}" for part in found for key in differing(found[part], trained[saved][part])]


# values and plain tensors


class Counter:
    def __init__(self, count: int) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "inner": torch.tensor([self.count])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"] + int(state["inner"])


def values(rank: int, fill: int) -> dict[str, Any]:
    base = torch.arange(24.0).reshape(4, 6) * fill
    tied = torch.full((3,), float(fill))
    state = {
        "a.b": {"c": [torch.full((2,), fill), {"d": fill}], "a.b": fill * 2},
        "tied": tied,
        "again": tied,
        "turned": base.t(),
        "some columns": base[:, 1:4],
        "parameter": torch.nn.Parameter(base.clone()),
        "kinds": {
            str(dtype): torch.ones(3).mul(fill).to(dtype)
            for dtype in (torch.bfloat16, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint8)
        },
        "one": torch.tensor(fill),
        "none": None,
        "text": ("x" * fill, b"y" * fill),
        f"own {rank}": torch.full((rank + 1,), float(rank * fill)),
        "counter": Counter(fill),
    }
    return dict(sorted(state.items(), reverse=rank % 2 == 1))  # ranks may have their keys in any order


def check_values(found: dict[str, Any], rank: int) -> None:
    expected = values(rank, fill=3)
    assert found.pop("counter").count == 6 and expected.pop("counter")
    (first, second), (a, b) = found.pop("a.b").values(), expected.pop("a.b").values()
    assert torch.equal(first[0], a[0]) and (first[1], second) == (a[1], b)
    kinds, same = found.pop("kinds"), expected.pop("kinds")
    assert all(torch.equal(kinds[key].to(torch.complex64), same[key].to(torch.complex64)) for key in same)
    assert differing(found, expected) == []


def sharded(fill: float) -> Any:
    """What FSDP of old saves."""
    size = dist.get_world_size()
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{rank}/cpu" for rank in range(size)])
    tensor = sharded_tensor.zeros(spec, 7, 3)
    for shard in tensor.local_shards():
        first = shard.metadata.shard_offsets[0]
        shard.tensor.copy_(torch.arange(first * 3.0, first * 3 + shard.tensor.numel()).reshape(-1, 3) * fill)
    return tensor


def check_sharded(ckpt: Checkpointer) -> None:
    state, expected = {"x": sharded(0)}, sharded(1)
    dcp.load(state, storage_reader=reader(ckpt, 3))
    for shard, same in zip(state["x"].local_shards(), expected.local_shards(), strict=True):
        assert torch.equal(shard.tensor, same.tensor)


# the runs


def failure(call: Callable[[], Any]) -> Any:
    with pytest.raises(CheckpointException) as caught:
        call()
    return caught.value.failures


def check_failures(ckpt: Checkpointer, rank: int) -> None:
    """What is wrong with a load or a save is an error on all ranks."""
    step = reader(ckpt, 2)
    full = DefaultLoadPlanner(allow_partial_load=True)
    state = {"one": torch.tensor(0), "new": torch.zeros(2)}
    assert "new" in str(failure(lambda: dcp.load(dict(state), storage_reader=step)))
    dcp.load(state, storage_reader=step, planner=full)
    assert int(state["one"]) == 3 and not state["new"].any()
    assert "ize" in str(failure(lambda: dcp.load({"tied": torch.zeros(4)}, storage_reader=step)))
    bad = {"x": torch.zeros(1), f"own {rank}": print if rank == 1 else rank}
    failures = failure(lambda: dcp.save(bad, storage_writer=ckpt.dcp_writer(20)))
    assert list(failures) == [1] and isinstance(failures[1][0], StateError)
    dcp.save({"x": torch.zeros(1)}, storage_writer=ckpt.dcp_writer(21))


def save_all(ckpt: Checkpointer, rank: int) -> Trained:
    dcp.save(tensors_in(saved=True, fill=True), storage_writer=ckpt.dcp_writer(1, flush=True))
    dcp.save(values(rank, fill=3), storage_writer=ckpt.dcp_writer(2, flush=True))
    dcp.save({"x": sharded(1)}, storage_writer=ckpt.dcp_writer(3, flush=True))
    trained: Trained = {}
    for kind, step in STEP_OF.items():
        state = flat(*model_of(kind, seed=1))
        trained[kind] = {part: whole(values) for part, values in state.items()}
        dcp.save(state, storage_writer=ckpt.dcp_writer(step, flush=True))
        settle(ckpt)
    assert ckpt.failed_saves == 0
    check_failures(ckpt, rank)
    settle(ckpt)
    failed = ckpt.failed_saves  # step 20, which one rank could not store
    ckpt.save(EVERYTHING, {"tensors": tensors_in(saved=True, fill=True), "rank": rank})
    settle(ckpt)
    assert ckpt.failed_saves == failed == 1
    load_all(ckpt, rank, trained)
    return trained


def load_all(ckpt: Checkpointer, rank: int, trained: Trained) -> None:
    tensors = tensors_in(saved=False, fill=False)
    dcp.load(tensors, storage_reader=reader(ckpt, 1))
    assert wrong(tensors) == []
    state = values(rank, fill=0)
    dcp.load(state, storage_reader=reader(ckpt, 2))
    check_values(state, rank)
    check_sharded(ckpt)
    for number, saved in enumerate(KINDS):
        assert load_model(ckpt, saved, KINDS[(number + dist.get_world_size() // 2) % len(KINDS)], trained) == []


def load_everything(ckpt: Checkpointer, rank: int, *, trained: Trained) -> None:
    state = {"tensors": tensors_in(saved=False, fill=False), "rank": -1}
    assert ckpt.load(state) == EVERYTHING and state["rank"] == rank
    assert wrong(state["tensors"]) == []
    load_all(ckpt, rank, trained)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, shared={"path": str(tmp_path / "shared"), "every_steps": 1 << 40, "keep": 20})
    yield world
    world.stop()


@needs_torch_2_7
def test_what_torch_expects_of_a_storage_holds_at_the_same_and_at_another_world_size(world: World) -> None:
    trained = world.run(4, save_all)[0]
    world.run(2, partial(load_everything, trained=trained))
