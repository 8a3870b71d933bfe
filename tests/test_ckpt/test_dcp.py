"""Sharded states over real process groups: any world size loads, through Checkpointer and through torch's own calls."""

from __future__ import annotations

import io
import os
import pickle
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from s3_kit import s3_server
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.planner import LoadPlan
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from trainer_kit import FAST, LIMIT_S, Node, processes, solo_namespace
from world_kit import World, needs_torch_2_7

from ckpt import Checkpointer
from ckpt.config import CheckpointConfig
from ckpt.convert.dcp_safetensors import export_dcp
from ckpt.convert.full_step import read_stored
from ckpt.errors import CheckpointError, StateError
from ckpt.format.layout import Chunk
from ckpt.format.shard_record import read_record
from ckpt.tiers.posix import SharedTier
from ckpt.worker.dcp import tensor_metadata
from ckpt.worker.engine import Engine


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.stop()


def mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def sharded_training(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A model whose parameters do not divide evenly, sharded over all ranks, and one step on the same data."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.ReLU(), torch.nn.Linear(13, 5))
    fully_shard(model, mesh=mesh())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step() -> None:
        torch.manual_seed(123)
        model(torch.randn(4, 7)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


def whole(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Everything that matters of a sharded training, gathered."""
    found = {name: value.full_tensor() for name, value in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            found[f"{index}.{name}"] = value.full_tensor() if isinstance(value, DTensor) else value
    return {name: value.clone() for name, value in found.items()}


def differing(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    return [name for name in {*a, *b} if name not in a or name not in b or not torch.equal(a[name], b[name])]


# without a launcher


def _solo_rank(rank: int, namespace: str, results: Any) -> None:
    torch.set_num_threads(1)
    env = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
    state = {"x": torch.zeros(3), "rank": -1}
    try:
        config = CheckpointConfig.from_mapping({"namespace": namespace, "memory": {"every_steps": 1}})
        with Checkpointer._around(Engine.standalone(config, env=env, deadlines=FAST)) as ckpt:
            step = ckpt.load(state) or 0
            result = (step, state["rank"], ckpt.failed_saves)
            ckpt.save(step + 1, {"x": torch.ones(3), "rank": rank})
    except Exception as error:
        result = (rank, repr(error), -1)
    results.put((rank, result))


@pytest.fixture
def namespace() -> Iterator[str]:
    with solo_namespace() as name:
        yield name


def test_two_ranks_of_one_node_share_an_agent_of_their_own(namespace: str) -> None:
    results = processes.Queue()
    for expected in ({0: (0, -1, 0), 1: (0, -1, 0)}, {0: (1, 0, 0), 1: (1, 1, 0)}):
        ranks = [processes.Process(target=_solo_rank, args=(rank, namespace, results)) for rank in range(2)]
        for process in ranks:
            process.start()
        assert dict(results.get(timeout=LIMIT_S) for _ in ranks) == expected
        for process in ranks:
            process.join(LIMIT_S)


# Checkpointer.save and load


def save_sharded(ckpt: Checkpointer, rank: int) -> dict[str, torch.Tensor]:
    model, optimizer, step = sharded_training(seed=1)
    step()
    step()
    both = distribute_tensor(torch.arange(30).reshape(5, 6), mesh(), [Shard(1)])
    same = distribute_tensor(torch.arange(4), mesh(), [Replicate()])
    state = {
        "model": model,
        "optimizer": optimizer,
        "rank": rank,
        "both": both,
        "same": same,
        "own": torch.tensor([rank]),
    }
    ckpt.save(2, state)
    return whole(model, optimizer)


def load_sharded(ckpt: Checkpointer, rank: int) -> tuple[dict[str, torch.Tensor], int, int]:
    model, optimizer, step = sharded_training(seed=2)
    state = {
        "model": model,
        "optimizer": optimizer,
        "rank": -1,
        "both": distribute_tensor(torch.zeros(5, 6, dtype=torch.int64), mesh(), [Shard(0)]),
        "same": torch.zeros(4, dtype=torch.int64),
        "own": torch.tensor([-1]),
    }
    assert ckpt.load(state) == 2
    assert torch.equal(state["both"].full_tensor(), torch.arange(30).reshape(5, 6))
    assert torch.equal(state["same"], torch.arange(4))
    found = whole(model, optimizer)
    step()  # the optimizer's new state is usable
    return found, state["rank"], int(state["own"])


@needs_torch_2_7
def test_a_sharded_state_loads_at_any_world_size(world: World) -> None:
    saved = world.run(2, save_sharded)[0]
    for size in (2, 1, 3):
        for rank, (found, saved_rank, own) in enumerate(world.run(size, load_sharded)):
            assert differing(found, saved) == []
            assert saved_rank == own == rank % 2


# torch.distributed.checkpoint


def dcp_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {
        "model": model_state,
        "optimizer": optimizer_state,
        "step": 0,
        "names": ("a", 1.5),
        "nested": {"x": [1, {"y": b"z"}]},
    }


def dcp_save(ckpt: Checkpointer, rank: int) -> dict[str, torch.Tensor]:
    model, optimizer, step = sharded_training(seed=1)
    step()
    dcp.save({**dcp_state(model, optimizer), "step": 1}, storage_writer=ckpt.dcp_writer(1))
    for number in (2, 3):
        step()
        saved = whole(model, optimizer)
        future = dcp.async_save({**dcp_state(model, optimizer), "step": number}, storage_writer=ckpt.dcp_writer(number))
        upload = getattr(future, "upload_completion", future)
        upload.result(timeout=LIMIT_S)
    assert ckpt.failed_saves == 0
    return saved


def dcp_load(ckpt: Checkpointer, rank: int) -> dict[str, torch.Tensor]:
    model, optimizer, _ = sharded_training(seed=2)
    state = dcp_state(model, optimizer)
    assert ckpt.newest_step == 3
    dcp.load(state, storage_reader=ckpt.dcp_reader())
    assert (state["step"], state["names"], state["nested"]) == (3, ("a", 1.5), {"x": [1, {"y": b"z"}]})
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    found = ckpt.read()
    assert (found.state["step"], found.state["names"], found.state["nested"]) == (3, ("a", 1.5), state["nested"])
    for name, value in state["model"].items():
        assert torch.equal(found.state["model"][name].read(), value.full_tensor()), name
    return whole(model, optimizer)


@needs_torch_2_7
def test_torch_distributed_checkpoint_saves_and_loads_at_any_world_size(world: World) -> None:
    saved = world.run(2, dcp_save)[0]
    for size in (2, 3):
        for found in world.run(size, dcp_load):
            assert differing(found, saved) == []


def dcp_save_two(ckpt: Checkpointer, rank: int) -> dict[str, torch.Tensor]:
    """Returns what the first had."""
    model, optimizer, step = sharded_training(seed=1)
    step()
    saved = whole(model, optimizer)
    dcp.save({**dcp_state(model, optimizer), "step": 1}, storage_writer=ckpt.dcp_writer(1, flush=True))
    step()
    dcp.save({**dcp_state(model, optimizer), "step": 2}, storage_writer=ckpt.dcp_writer(2))
    return saved


def dcp_load_first(ckpt: Checkpointer, rank: int) -> dict[str, torch.Tensor]:
    model, optimizer, _ = sharded_training(seed=2)
    state = dcp_state(model, optimizer)
    assert ckpt.newest_step == 2
    dcp.load(state, storage_reader=ckpt.dcp_reader(1))
    assert (state["step"], state["names"], state["nested"]) == (1, ("a", 1.5), {"x": [1, {"y": b"z"}]})
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return whole(model, optimizer)


@needs_torch_2_7
def test_a_step_that_is_not_the_newest_is_read_from_the_shared_tier_at_any_world_size(tmp_path: Path) -> None:
    world = World(tmp_path, shared={"path": str(tmp_path / "shared"), "every_steps": 1000})
    try:
        saved = world.run(2, dcp_save_two)[0]
        for size in (2, 3):
            for found in world.run(size, dcp_load_first):
                assert differing(found, saved) == []
    finally:
        world.stop()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.stop()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_without_a_process_group_it_is_one_process(alone: Node) -> None:
    with alone.start() as ckpt:
        dcp.save({"x": torch.arange(5), "n": {"m": 4}}, storage_writer=ckpt.dcp_writer(1))
        dcp.async_save({"x": torch.arange(5) * 2, "n": {"m": 5}}, storage_writer=ckpt.dcp_writer(2)).result(timeout=20)
    with alone.start() as ckpt:
        state = {"x": torch.zeros(5, dtype=torch.int64), "n": {"m": 0}}
        dcp.load(state, storage_reader=ckpt.dcp_reader(2))
        assert state["x"].tolist() == [0, 2, 4, 6, 8] and state["n"] == {"m": 5}
        dcp.load(state, storage_reader=ckpt.dcp_reader(1))
        assert state["x"].tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(
            CheckpointError,
            match=r"step 7 is not the one restored at the start: .* no node's memory or disk has all of it",
        ):
            ckpt.dcp_reader(7)
        with pytest.raises(StateError, match=r"was saved through dcp_writer\(\)"):
            ckpt.load({"x": state["x"]})
        with pytest.raises(StateError, match="works in its own process only; call "):
            pickle.dumps(ckpt.dcp_writer(3))


class OwnSave(DefaultSavePlanner):
    """Leaves bytes as they are, as the planners of Megatron's dist_checkpointing do."""

    def transform_object(self, write_item: Any, object: Any) -> Any:
        return object if isinstance(object, io.BytesIO) else super().transform_object(write_item, object)


class OwnLoad(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        if read_item.dest_index.fqn == "own":
            self.original_state_dict["own"] = value.read()
        else:
            super().load_bytes(read_item, value)


NO_PICKLE = b"\x00\xff of the planner's own"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_a_planner_has_serialised_itself_comes_back_as_those_bytes(tmp_path: Path) -> None:
    node = Node(tmp_path, shared={"path": str(tmp_path / "shared"), "every_steps": 1, "keep": 9})
    try:
        with node.start() as ckpt:
            saved = {"x": torch.arange(3), "own": io.BytesIO(NO_PICKLE), "note": {"n": 5}}
            dcp.save(saved, storage_writer=ckpt.dcp_writer(1, flush=True), planner=OwnSave())
        state = {"x": torch.zeros(3, dtype=torch.int64), "own": io.BytesIO(), "note": {"n": 0}}
        with node.start() as ckpt:
            dcp.load(state, storage_reader=ckpt.dcp_reader(), planner=OwnLoad())
            assert ckpt.read().state["own"] == NO_PICKLE
        assert state["own"] == NO_PICKLE and state["note"] == {"n": 5} and state["x"].tolist() == [0, 1, 2]
        tier = SharedTier(tmp_path / "shared", "ns")
        export_dcp(read_stored(tier, tier.steps()[0]), tmp_path / "out")
        state = {"x": torch.zeros(3, dtype=torch.int64), "own": io.BytesIO(), "note": {"n": 0}}
        dcp.load(state, checkpoint_id=tmp_path / "out", planner=OwnLoad())
        assert state["own"] == NO_PICKLE and state["note"] == {"n": 5}
    finally:
        node.stop()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_bytes_that_torchs_planner_serialises_come_back_as_an_object(alone: Node) -> None:
    with alone.start() as ckpt:
        dcp.save({"file": io.BytesIO(NO_PICKLE)}, storage_writer=ckpt.dcp_writer(1))
    state = {"file": io.BytesIO()}
    with alone.start() as ckpt:
        dcp.load(state, storage_reader=ckpt.dcp_reader())
    assert state["file"].getvalue() == NO_PICKLE


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_two_keys_of_one_tensor_do_not_take_two_values(alone: Node) -> None:
    with alone.start() as ckpt:
        dcp.save({"a": torch.ones(3), "b": torch.zeros(3)}, storage_writer=ckpt.dcp_writer(1))
    same = torch.full((3,), 7.0)
    with alone.start() as ckpt, pytest.raises(CheckpointException) as caught:
        dcp.load({"a": same, "b": same}, storage_reader=ckpt.dcp_reader())
    assert "share memory in the live state" in str(caught.value.failures[0][0]) and same.tolist() == [7.0] * 3


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_object_that_json_cannot_hold_is_refused_by_key(alone: Node) -> None:
    with alone.start() as ckpt:
        with pytest.raises(CheckpointException) as caught:
            dcp.save({"nested": {"f": os.getcwd}}, storage_writer=ckpt.dcp_writer(1))
        error = caught.value.failures[0][0]
        assert isinstance(error, StateError) and "state['nested.f']: cannot store" in str(error)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_step_of_the_other_way_is_refused_with_advice(alone: Node) -> None:
    with alone.start() as ckpt:
        with pytest.raises(CheckpointError, match="there is no step to restore"):
            ckpt.dcp_reader()
        ckpt.save(1, {"x": torch.zeros(3)})
    with alone.start() as ckpt, pytest.raises(StateError, match=r"load it with Checkpointer.load\(\)"):
        ckpt.dcp_reader()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_an_older_step_of_the_other_way_is_refused_with_advice_that_works(tmp_path: Path) -> None:
    node = Node(tmp_path, shared={"path": str(tmp_path / "shared"), "every_steps": 1, "keep": 9})
    try:
        with node.start() as ckpt:
            for step in (1, 2):
                ckpt.save(step, {"x": torch.zeros(3)}, flush=True)
        with node.start() as ckpt, pytest.raises(StateError, match="`holdfast ckpt export --step 1` gives it"):
            ckpt.dcp_reader(1)
    finally:
        node.stop()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("tier", ["shared", "s3"])
def test_a_step_that_is_not_the_newest_is_verified_in_whichever_tier_has_it(tmp_path: Path, tier: str) -> None:
    with s3_server(tmp_path / "server") as server:
        sections = {"s3": server.section(), "shared": {"path": str(tmp_path / "shared")}}
        node = Node(tmp_path, **{tier: {**sections[tier], "every_steps": 1000}})
        try:
            with node.start() as ckpt:
                dcp.save({"x": torch.arange(3_000_000), "n": 1}, storage_writer=ckpt.dcp_writer(1, flush=True))
                dcp.save({"x": torch.zeros(3_000_000), "n": 2}, storage_writer=ckpt.dcp_writer(2))
            for record in node.ram_dir.glob("own-*.json"):
                if read_record(node.ram_dir, record.stem).save.step == 1:
                    record.unlink()
            with node.start() as ckpt:
                state = {"x": torch.zeros(3_000_000, dtype=torch.int64), "n": 0}
                dcp.load(state, storage_reader=ckpt.dcp_reader(1))
                assert state["n"] == 1 and state["x"].equal(torch.arange(3_000_000))
                with pytest.raises(CheckpointError, match="step 3 is not the one restored at the start"):
                    ckpt.dcp_reader(3)
                if tier == "shared":
                    (data,) = (tmp_path / "shared").glob("*/step-*/node-*")
                    with data.open("r+b") as file:
                        file.seek(20_000_000)
                        file.write(b"bad")
                    with pytest.raises(CheckpointException, match=r"no shard of rank 0: .* no source left"):
                        dcp.load(state, storage_reader=ckpt.dcp_reader(1))
        finally:
            node.stop()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_ranks_that_have_found_different_saves_of_a_step_load_none(alone: Node) -> None:
    with alone.start() as ckpt:
        dcp.save({"x": torch.arange(5)}, storage_writer=ckpt.dcp_writer(1))
    with alone.start() as ckpt:
        reader = ckpt.dcp_reader()
        plan = reader.prepare_local_plan(LoadPlan([]))
        other = replace(plan, storage_data=replace(plan.storage_data, attempt=7))
        assert reader.prepare_global_plan([plan, plan]) == [plan, plan]
        with pytest.raises(CheckpointError, match="different saves of step 1"):
            reader.prepare_global_plan([plan, other])


def test_the_metadata_of_thousands_of_ranks_is_built_in_linear_time() -> None:
    ranks = 20_000
    boxes = [(4 * rank, 0) for rank in range(ranks)]
    chunks = [
        Chunk(key="w", dtype="float32", shape=(4 * ranks, 64), offsets=box, sizes=(4, 64), start=0, nbytes=1024)
        for box in [*boxes, *boxes[::-1]]  # each has a replica
    ]
    started_s = time.process_time()
    found = tensor_metadata(chunks)
    assert [tuple(chunk.offsets) for chunk in found["w"].chunks] == boxes and found["w"].size == (4 * ranks, 64)
    assert time.process_time() - started_s < 10, "a comparison of all pairs takes a minute or more"


class Packing(dcp.DefaultSavePlanner):
    """As Megatron's planner: its objects are bytes already, which torch.load reads."""

    def transform_object(self, write_item: Any, object: Any) -> Any:
        return object


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_objects_that_a_planner_has_packed_itself_come_back_as_it_packed_them(alone: Node) -> None:
    packed, plain = io.BytesIO(), io.BytesIO(b"plain")
    torch.save([{"opaque": range}], packed)
    with alone.start() as ckpt:
        planner = Packing(flatten_state_dict=False)
        dcp.save({"packed": packed}, storage_writer=ckpt.dcp_writer(1), planner=planner)
    with alone.start() as ckpt:
        state: dict[str, Any] = {"packed": None}
        dcp.load(state, storage_reader=ckpt.dcp_reader(1))
        assert state["packed"] == [{"opaque": range}]
        assert ckpt.read(1).state["packed"] == packed.getvalue()
        dcp.save({"plain": plain}, storage_writer=ckpt.dcp_writer(2))
    with alone.start() as ckpt:
        dcp.load(state := {"plain": io.BytesIO()}, storage_reader=ckpt.dcp_reader(2))
        assert state["plain"].getvalue() == b"plain"
