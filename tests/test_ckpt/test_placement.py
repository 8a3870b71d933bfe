"""DTensors of every layout: what a rank holds is stored where it belongs, or refused by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from world_kit import World, needs_torch_2_7, placed, split

from ckpt import Checkpointer
from ckpt.config import CheckpointConfig
from ckpt.convert.full_step import read_stored
from ckpt.errors import StateError
from ckpt.tiers.open import lower_tiers
from ckpt.worker.dcp import check_one_box
from ckpt.worker.placement import cut

# what a rank holds


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]:
    """A shape, a mesh, and what the mesh's dimensions do with the tensor."""
    shape = tuple(draw(st.lists(st.integers(0, 13), max_size=3), "shape"))
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3), "mesh"))
    dims = st.integers(0, len(shape) - 1) if shape else st.nothing()
    strided = st.builds(lambda dim, factor: _StridedShard(dim, split_factor=factor), dims, st.integers(1, 4))
    placement = st.one_of(st.just(Replicate()), dims.map(Shard), strided)
    return shape, mesh, tuple(draw(st.tuples(*[placement] * len(mesh)), "placements"))


@needs_torch_2_7
@given(layouts())
def test_the_parts_of_a_local_tensor_are_boxes_of_the_whole_one(layout: Any) -> None:
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset  # torch 2.6 has none

    shape, mesh, placements = layout
    whole = torch.arange(math.prod(shape)).reshape(shape)
    copies = math.prod(size for size, placement in zip(mesh, placements, strict=True) if placement.is_replicate())
    times = torch.zeros_like(whole)
    for at in itertools.product(*map(range, mesh)):
        local, parts = split(whole, mesh, at, placements), cut(shape, mesh, at, placements)
        sizes, offsets = _compute_local_shape_and_global_offset(shape, mesh, list(at), placements)
        assert tuple(local.shape) == sizes and sum(part.box.elements for part in parts) == local.numel()
        if local.numel():
            assert parts[0].box.offsets == tuple(offsets)
        for part in parts:
            index = part.box.within(cut(shape, (1,), (0,), (Replicate(),))[0].box)
            assert torch.equal(whole[index], local[part.index])
            times[index] += 1
    assert (times == copies).all()


# with real ranks

WHOLE = torch.arange(30.0).reshape(10, 3)


def wanted(name: str) -> torch.Tensor:
    return {"few": WHOLE[:1], "scalar": torch.tensor(7.0)}.get(name, WHOLE)


def state_of(size: int) -> dict[str, DTensor]:
    """Tensors on meshes of all ranks, and of some."""
    grid = init_device_mesh("cpu", (2, size // 2) if size % 2 == 0 else (1, size))
    first, last = DeviceMesh("cpu", list(range(size // 2))), DeviceMesh("cpu", [size - 1])
    layouts: dict[str, tuple[DeviceMesh, list[Any]]] = {
        "gaps": (grid, [_StridedShard(0, split_factor=3), Replicate()]),
        "right to left": (grid, [_StridedShard(0, split_factor=grid.size(1)), Shard(0)]),
        "both": (grid, [_StridedShard(0, split_factor=2), Shard(1)]),
        "some": (first, [Shard(0)]),
        "few": (first, [Shard(0)]),
        "scalar": (last, [Replicate()]),
    }
    return {name: placed(wanted(name), *layout) for name, layout in layouts.items()}


class Ragged(Shard):
    """A placement of a later version of torch."""


def save_layouts(ckpt: Checkpointer, rank: int) -> None:
    state = state_of(dist.get_world_size())
    summed = funcol.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert type(summed) is funcol.AsyncCollectiveTensor
    ckpt.save(1, {**state, "rank": rank, "summed": summed}, flush=True)
    mesh = DeviceMesh("cpu", [rank], _init_backend=False)
    with pytest.raises(StateError, match=r"state\['x'\]: .* has shape \[1\], expected \[4\]"):
        ckpt.save(2, {"x": DTensor.from_local(torch.zeros(1), mesh, [Replicate()], shape=(4,), stride=(1,))})
    with pytest.raises(StateError, match=r"state\['y'\]: a DTensor placed by .*, expected Replicate, Shard"):
        ckpt.save(3, {"y": DTensor.from_local(torch.zeros(1), mesh, [Ragged(0)])})
    with pytest.raises(StateError, match="has gaps between its rows, which torch's planner cannot describe"):
        check_one_box(SimpleNamespace(state_dict=state), "gaps")
    with pytest.raises(CheckpointException):  # torch's own planner refuses it, unless it is asked not to look
        dcp.save({"gaps": state["gaps"]}, storage_writer=ckpt.dcp_writer(4))
    ckpt._engine.connect().await_saves()
    assert ckpt.failed_saves == 0


def load_layouts(ckpt: Checkpointer, rank: int) -> None:
    state = state_of(dist.get_world_size())
    expected = {name: value._local_tensor.clone() for name, value in state.items()}
    for value in state.values():
        value._local_tensor.zero_()
    summed = funcol.all_reduce(torch.zeros(3), "sum", dist.group.WORLD)
    assert ckpt.load({**state, "rank": -1, "summed": summed}) == 1 and summed.tolist() == [4, 4, 4]
    assert [name for name, value in state.items() if not torch.equal(value._local_tensor, expected[name])] == []
    plain = {name: torch.zeros_like(wanted(name)) for name in state}
    found = ckpt.read(rank=3).state
    assert found["rank"] == 3 and all(torch.equal(found[name].read(), wanted(name)) for name in plain)
    assert torch.equal(found["gaps"][2:9, 1:], WHOLE[2:9, 1:])
    ckpt.load({**plain, "rank": -1, "summed": torch.zeros(3)})
    assert [name for name, value in plain.items() if not torch.equal(value, wanted(name))] == []


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, shared={"path": str(tmp_path / "shared"), "every_steps": 1})
    yield world
    world.stop()


@needs_torch_2_7
def test_tensors_with_gaps_and_on_some_of_the_ranks_come_back_in_any_layout(world: World) -> None:
    world.run(4, save_layouts)
    world.run(2, load_layouts)
    (tier,) = lower_tiers(CheckpointConfig.from_mapping(world.section), "n0").values()
    for rank in range(4):
        stored = read_stored(tier, next(iter(tier.catalog())).save, rank)
        assert stored.full("summed").tolist() == [4, 4, 4] and len(stored.tensors) == 7
        assert all(torch.equal(stored.full(name), wanted(name)) for name in stored.tensors if name != "summed")
