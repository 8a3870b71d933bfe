"""Tensors that ranks hold alike are stored once, a part by each; whatever is not proven to be alike stays per rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from world_kit import World as Ranks

from ckpt import Checkpointer
from ckpt.errors import CorruptError
from ckpt.format.boxes import Box, intersect
from ckpt.format.layout import Chunk, Layout
from ckpt.format.rank_grid import UNKNOWN, Spread
from ckpt.format.shard_record import read_record
from ckpt.worker.load.read_plan import TensorReads
from ckpt.worker.placement import Piece
from ckpt.worker.save.replicas import SMALL_BYTES, Proofs, World, share_out

# who stores what


@given(
    shapes=st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=3).map(tuple), min_size=1, max_size=12),
    members=st.integers(2, 9),
)
def test_the_shares_of_a_group_hold_each_element_once_and_weigh_the_same(
    shapes: list[tuple[int, ...]], members: int
) -> None:
    group = range(3, 3 + members)
    replicas = {
        number: Piece(
            group=group, key=str(number), data=np.empty(0, np.float32), shape=shape, box=Box((0,) * len(shape), shape)
        )
        for number, shape in enumerate(shapes)
    }  # fmt: skip
    by_rank = [share_out(replicas, rank) for rank in group]
    assert len({tuple(tokens.items()) for _, tokens in by_rank}) == 1, "all tell the same token"
    shared = by_rank[0][0]
    assert set(shared) == {number for number, replica in replicas.items() if replica.nbytes >= SMALL_BYTES}
    for number in shared:
        box, parts = replicas[number].box, [shares[number] for shares, _ in by_rank]
        assert parts[0].start == 0 and all(a.start + a.rows == b.start for a, b in itertools.pairwise(parts))
        assert sum(part.box(box).elements for part in parts) == box.elements
        first, last = parts[0].owners
        assert all(first <= member <= last for member, part in enumerate(parts) if part.rows)
    stored = [sum(4 * share.box(replicas[n].box).elements for n, share in shares.items()) for shares, _ in by_rank]
    row_bytes = max([4 * Box((), s).elements // next((n for n in s if n > 1), 1) for s in shapes], default=0)
    assert max(stored) - min(stored) <= 2 * row_bytes + members


def test_ranks_with_another_structure_or_in_another_order_tell_another_token() -> None:
    def token(*keys: str, size: int = 8192) -> list[str]:
        replicas = {
            n: Piece(group=range(2), key=key, data=np.empty(0, np.float32), shape=(size,), box=Box((0,), (size,)))
            for n, key in enumerate(keys)
        }
        return list(share_out(replicas, 0)[1])

    assert token("a", "b") == token("a", "b")
    assert len({*token("a", "b"), *token("b", "a"), *token("a"), *token("a", "b", size=8193)}) == 4


# where to look


def boxes_of(spread: Spread, shape: tuple[int, ...]) -> dict[int, Box]:
    """Each rank's box, as torch cuts: along each mesh dimension in turn, in parts rounded up."""
    found = {}
    for number, at in enumerate(itertools.product(*map(range, spread.shape))):
        offsets, sizes = [0] * len(shape), list(shape)
        for i, dim in zip(at, spread.splits, strict=True):
            if dim is not None:
                size = -(-sizes[dim] // spread.shape[spread.splits.index(dim)])
                start = min(i * size, sizes[dim])
                offsets[dim] += start
                sizes[dim] = min(size, sizes[dim] - start)
        found[spread.ranks[number]] = Box(tuple(offsets), tuple(sizes))
    return found


@given(data=st.data())
def test_the_likely_ranks_of_a_box_are_just_those_that_hold_some_of_it(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3), "shape"))
    mesh = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=2), "mesh"))
    free = [*range(len(shape)), None, None]
    splits = tuple(data.draw(st.permutations(free), "splits")[: len(mesh)])
    first = data.draw(st.integers(0, 5), "first rank")
    spread = Spread(shape=mesh, ranks=range(first, first + int(np.prod(mesh))), splits=splits)
    starts = [data.draw(st.integers(0, n - 1)) for n in shape]
    ends = [data.draw(st.integers(start + 1, n)) for start, n in zip(starts, shape, strict=True)]
    wanted = Box(tuple(starts), tuple(end - start for start, end in zip(starts, ends, strict=True)))
    likely = list(Spread.from_json(spread.to_json()).likely(shape, None, wanted, data.draw(st.integers(0, 9))))
    assert sorted(likely) == [rank for rank, box in boxes_of(spread, shape).items() if intersect(box, wanted)]


def test_owners_narrow_the_replicas_to_look_at() -> None:
    spread = Spread(shape=(3, 2, 4), ranks=range(24), splits=(None, 0, None))
    wanted = Box((6,), (2,))  # in the second half
    assert list(spread.likely((8,), (3, 5), wanted, 0)) == [4 + 3, 8 + 4 + 0, 8 + 4 + 1]


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [[2], [0, 1], True, [None]],
        [[1], [-1], False, [None]],
        [[1], "x", 0, 1],
        [[1] * 65, [0, 1], True, [None] * 65],
        [[1 << 70], [0, 1 << 70], True, [None]],
        [[1], [0, 1], True, ["x"]],
    ],
)
def test_a_malformed_spread_is_corrupt(value: Any) -> None:
    with pytest.raises(CorruptError, match="spread: missing or malformed field"):
        Spread.from_json(value)


class Wrapped(torch.optim.Optimizer):
    """As accelerate wraps an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()


class Averaging(torch.optim.Adam):
    """Somebody's own, which may keep what it likes for a parameter."""


def test_what_a_wrapped_optimizer_of_torchs_keeps_is_proven_and_nothing_of_another() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    proofs = Proofs({}, World())
    proofs._groups = {id(parameters[1]): range(2)}
    adam, own = torch.optim.Adam(parameters), Averaging(parameters)
    adam.step()
    own.step()
    for optimizer in (adam, Wrapped(adam), Wrapped(Wrapped(adam))):
        proven = list(proofs.of_optimizer(optimizer, optimizer.state_dict()))
        assert [path for path, _, _ in proven] == [("state", 1, "exp_avg"), ("state", 1, "exp_avg_sq")]
    copied = {"state": {1: {"exp_avg": torch.zeros(2)}}}
    assert list(proofs.of_optimizer(Wrapped(adam), copied)) == []
    assert list(proofs.of_optimizer(Wrapped(own), own.state_dict())) == []


# with real ranks


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Ranks]:
    world = Ranks(tmp_path)
    yield world
    world.stop()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(90, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 70, bias=False)
        )
        self.register_buffer("seen", torch.zeros(20_000))


def training(rank: int, seed: int) -> tuple[dict[str, Any], torch.Tensor]:
    """A state of which a part is proven to be the same on all ranks, after a step; and a tensor that looks so."""
    torch.manual_seed(seed)
    net = Net()
    net.seen.fill_(rank)
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    model.module.layers(torch.randn(8, 90)).square().mean()  # sets the running statistics of this rank
    loss = sum(parameter.square().mean() for parameter in model.parameters())
    loss.backward()
    optimizer.step()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = {
        "model": model,
        "optimizer": optimizer,
        "table": {"fixed": np.arange(30_000) + seed},
        "spread": distribute_tensor(torch.arange(40_000.0).reshape(200, 200) + seed, mesh, [Replicate()]),
        "cut": distribute_tensor(torch.arange(40_000.0).reshape(200, 200) + seed, mesh, [Shard(1)]),
        "own": torch.full((20_000,), float(rank)),
        "rank": rank,
    }
    return state, net.seen


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Everything in a state, whole tensors."""
    if hasattr(value, "state_dict"):
        value = value.state_dict()
    if isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {name: leaf for key, item in items for name, leaf in flat(item, f"{path}/{key}").items()}
    if isinstance(value, DTensor):
        value = value.full_tensor()
    return {path: value.numpy().copy() if isinstance(value, torch.Tensor) else value}


def save_training(ckpt: Checkpointer, rank: int) -> dict[str, Any]:
    state, _ = training(rank, seed=1)
    ckpt.save(1, state)
    return flat(state)


def load_training(ckpt: Checkpointer, rank: int) -> dict[str, Any]:
    state, _ = training(rank + 10, seed=2)
    assert ckpt.load(state) == 1
    return flat(state)


def test_what_ddp_dtensors_and_the_user_say_is_the_same_is_stored_once_and_loads_everywhere(world: Ranks) -> None:
    saved = world.run(3, save_training, replicated=["table"])
    records = [read_record(world.ram_dir, f"own-{rank}-0") for rank in range(3)]
    parts: dict[str, list[int]] = {}
    for record in records:
        for chunk in record.layout.chunks:
            parts.setdefault(chunk.key, []).append(chunk.nbytes)
    once = {key for key, sizes in parts.items() if len(set(sizes)) > 1 or 0 in sizes}
    assert sum(parts["table/fixed"]) == 240_000 and sum(parts["spread"]) == 160_000
    weights = [key for key in parts if key.endswith("2.weight")] + ["optimizer/state/0/exp_avg"]
    assert len(weights) == 2
    for key in weights:
        assert sum(parts[key]) == 4 * np.size(saved[0][f"/{key}"]), key
    for key in ("own", "model/module.seen", "model/module.layers.1.running_mean"):
        assert len(set(parts[key])) == 1 and sum(parts[key]) == 3 * parts[key][0] > 0, key
    assert not {"own", "model/module.seen"} & once
    shared = [sum(c.nbytes for c in record.layout.chunks if c.owners) for record in records]
    assert max(shared) - min(shared) < 3000, "a part of the same weight by each"

    for size in (3, 2, 4):
        for rank, found in enumerate(world.run(size, load_training)):
            expected = saved[rank % 3]
            assert found.keys() == expected.keys()
            assert [name for name in expected if not np.array_equal(found[name], expected[name])] == []


def save_before_the_other(ckpt: Checkpointer, rank: int) -> int:
    """Each rank in turn has saved before the other so much as calls."""
    state, _ = training(rank, seed=1)
    store = dist.distributed_c10d._get_default_store()
    for step in (1, 2):
        first = rank == step % 2
        if not first:
            store.wait([f"saved {step}"])
        ckpt.save(step, state)
        if first:
            store.set(f"saved {step}", "")
    ckpt._engine.connect().await_saves()
    return ckpt.failed_saves


def test_a_save_waits_for_no_other_rank(world: Ranks) -> None:
    """There is no collective in it, though ranks share out what they hold alike."""
    assert world.run(2, save_before_the_other, replicated=["table"]) == [0, 0]
    records = [read_record(world.ram_dir, f"own-{rank}-{slot}") for rank in range(2) for slot in range(2)]
    assert sorted(record.save.step for record in records) == [1, 1, 2, 2]
    assert all(any(chunk.owners for chunk in record.layout.chunks) for record in records)


def hooked(ckpt: Checkpointer, rank: int) -> int:
    state, _ = training(rank, seed=1)
    state["model"].register_comm_hook(None, fp16_compress_hook)
    state["plain"] = {"weight": state["model"].module.layers[0].weight.detach()}
    ckpt.save(1, {"model": state["model"], "plain": state["plain"]})
    return len(ckpt._engine._stager._planned[1].tokens)


def test_a_communication_hook_or_a_plain_tensor_proves_nothing(world: Ranks) -> None:
    assert world.run(2, hooked) == [0, 0]
    for rank in range(2):
        assert not any(chunk.owners for chunk in read_record(world.ram_dir, f"own-{rank}-0").layout.chunks)


def grown_alone(ckpt: Checkpointer, rank: int) -> list[tuple[int, int]]:
    """Saves of which the second has another structure on rank 1."""
    state: dict[str, Any] = {"same": {"a": torch.arange(30_000)}, "rank": rank}
    progress = []
    for step in range(1, 5):
        if step == 2 and rank == 1:
            state["same"]["b"] = torch.arange(40_000)
        ckpt.save(step, state)
        ckpt._engine.connect().await_saves()
        progress.append((ckpt.failed_saves, ckpt._engine._stager._planned[1].nbytes))
        dist.barrier()
    return progress


def load_grown(ckpt: Checkpointer, rank: int) -> tuple[int, list[str]]:
    state: dict[str, Any] = {"same": {"a": torch.zeros(30_000, dtype=torch.int64)}, "rank": -1}
    if rank == 1:
        state["same"]["b"] = torch.zeros(40_000, dtype=torch.int64)
    step = ckpt.load(state) or 0
    assert all(torch.equal(value, torch.arange(len(value))) for value in state["same"].values())
    return step, list(state["same"])


def test_a_structure_that_changes_on_one_rank_is_noticed_and_every_rank_stores_its_own(world: Ranks) -> None:
    first, second = world.run(2, grown_alone, replicated=["same"])
    assert [failed for failed, _ in first] == [failed for failed, _ in second] == [0, 1, 1, 1]
    assert first[0][1] == second[0][1] == 120_000, "shared out"
    assert first[2][1] == 240_000 and second[2][1] == 240_000 + 320_000, "all of it"
    assert world.run(2, load_grown) == [(4, ["a"]), (4, ["a", "b"])]


class Records:
    """A saved step of many ranks that notes whose records were asked for."""

    def __init__(self, layouts: list[Layout]) -> None:
        self.step, self.world_size = 1, len(layouts)
        self.opened: list[int] = []
        self._layouts = layouts

    def record(self, rank: int) -> Any:
        self.opened.append(rank)
        return SimpleNamespace(layout=self._layouts[rank])


@pytest.mark.parametrize("known", [True, False])
def test_a_load_into_another_layout_opens_only_the_records_it_needs(known: bool) -> None:
    rows, ranks = 64, 16
    spread = Spread(shape=(ranks,), ranks=range(ranks), splits=(0 if known else UNKNOWN,))
    layouts = [
        Layout(
            chunks=(
                Chunk(key="w", dtype="float32", shape=(rows, 3), offsets=(4 * rank, 0), sizes=(4, 3), start=0,
                      nbytes=48, spread=0),
            ),
            tree={"w": {"#dtensor": "w"}}, nbytes=48, spreads=(spread,),
        )
        for rank in range(ranks)
    ]  # fmt: skip
    saved = Records(layouts)
    reads = TensorReads(saved, source=2)
    reads._plan({"#dtensor": "w"}, Box((30, 0), (9, 3)), torch.empty(9, 3), ("w",))
    assert [read.rank for read in reads.reads] == [7, 8, 9]
    assert set(saved.opened) == ({2, 7, 8, 9} if known else set(range(2, 10)))


def hybrid(fill: float, shape: tuple[int, int]) -> DTensor:
    """Sharded by rows within a group of ranks, the same in every group."""
    mesh = init_device_mesh("cpu", shape)
    return distribute_tensor(torch.arange(50_001.0).reshape(7143, 7) + fill, mesh, [Replicate(), Shard(0)])


def save_hybrid(ckpt: Checkpointer, rank: int) -> None:
    ckpt.save(1, {"w": hybrid(0, (2, 2))})


def load_hybrid(ckpt: Checkpointer, rank: int) -> bool:
    state = {"w": hybrid(5, (1, dist.get_world_size()))}
    ckpt.load(state)
    return torch.equal(state["w"].full_tensor(), torch.arange(50_001.0).reshape(7143, 7))


def test_a_tensor_sharded_in_groups_that_are_the_same_is_stored_once(world: Ranks) -> None:
    world.run(4, save_hybrid)
    chunks = [read_record(world.ram_dir, f"own-{rank}-0").layout.chunks[0] for rank in range(4)]
    assert sum(chunk.nbytes for chunk in chunks) == 4 * 50_001 and all(chunk.nbytes > 40_000 for chunk in chunks)
    assert world.run(3, load_hybrid) == [True] * 3


def test_what_is_stored_once_comes_back_from_disk_too(tmp_path: Path) -> None:
    world = Ranks(tmp_path, shared={"path": str(tmp_path / "shared"), "every_steps": 1})
    try:
        world.run(4, save_hybrid)
        world.stop()
        for path in world.ram_dir.iterdir():
            path.unlink()
        assert world.run(2, load_hybrid) == [True] * 2
    finally:
        world.stop()
