"""A step is read without a live state: values at once, tensors and their rows on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from agent_kit import World, config, run, until
from trainer_kit import Node, checkpointer

from ckpt.errors import CheckpointError, ConfigError


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, shared={"path": str(tmp_path / "shared"), "every_steps": 1, "keep": 9})
    yield node
    node.stop()


def test_a_step_is_read_without_a_state_to_fill(node: Node) -> None:
    net = torch.nn.Linear(3, 2)
    table = np.arange(2_000_000.0).reshape(-1, 4)
    with node.start() as ckpt:
        with pytest.raises(CheckpointError, match="read: there is no step to restore"):
            ckpt.read()
        for step in (1, 2):
            ckpt.save(step, {"net": net, "epoch": step, "pair": (net.weight, {1: table}), "one": torch.tensor(5.0)})
    with node.start() as ckpt:
        found = ckpt.read()
        assert (found.step, found.world_size, found.rank, found.state["epoch"]) == (2, 1, 0, 2)
        weight, (again, by) = found.state["net"]["weight"], found.state["pair"]
        assert repr(weight) == "StoredTensor('net/weight', float32 [2, 3])"
        assert torch.equal(weight.read(), net.weight) and torch.equal(again.read(), net.weight)
        assert torch.equal(weight[-1:, :2], net.weight[-1:, :2]) and weight[2:].shape == (0, 3)
        assert found.state["one"].read().item() == 5
        assert type(by[1].read()) is np.ndarray and (by[1].read() == table).all()
        assert (by[1][400_000:400_010, 1:2] == table[400_000:400_010, 1:2]).all()
        for index in (0, slice(0, 2, 2), (slice(1), slice(1), slice(1))):
            with pytest.raises(TypeError, match="expected at most 2 slices without steps"):
                weight[index]
        older = ckpt.read(1)
        assert older.state["epoch"] == 1 and torch.equal(older.state["net"]["bias"].read(), net.bias)
        with pytest.raises(ConfigError, match="step 2: no rank 1; it was saved by 1 ranks"):
            ckpt.read(rank=1)
        with pytest.raises(CheckpointError, match="step 7 is not the one restored at the start"):
            ckpt.read(7)
        state = {"net": torch.nn.Linear(3, 2), "epoch": 0}
        assert ckpt.load(state, strict=False) == 2, "a step that was read still loads"


def test_rows_that_are_damaged_are_not_read_and_the_others_are(node: Node) -> None:
    del node.section["shared"]
    with node.start() as ckpt:
        ckpt.save(1, {"x": torch.ones(20_000_000 // 4)})
    with node.start() as ckpt:
        found = ckpt.read().state["x"]
        with open(node.ram_dir / "own-0-0.data", "r+b") as file:
            file.seek(19_000_000)
            file.write(b"\xff")
        assert found[:1000].eq(1).all()
        with pytest.raises(CheckpointError, match="no source left: all were found damaged"):
            found.read()


def test_what_a_read_has_fetched_leaves_memory_at_the_next_save(tmp_path: Path) -> None:
    async def test() -> None:
        fetched = tmp_path / "a" / "fetch-1.data"
        for attempt in range(2):
            async with World(tmp_path, ["a", "b"], attempt, config(scheme="none")) as world:
                ranks = [checkpointer(place, config(), rank=rank) for rank, place in enumerate(world.places)]
                if attempt:
                    contents = await asyncio.to_thread(ranks[0].read, rank=1)
                    assert (await asyncio.to_thread(contents.state["x"].read)).tolist() == [1, 1, 1]
                    assert fetched.exists()
                for rank, ckpt in enumerate(ranks):
                    await asyncio.to_thread(ckpt.save, attempt, {"x": np.full(3, rank)})
                await until(lambda: not fetched.exists())
                await asyncio.gather(*(asyncio.to_thread(ckpt.close) for ckpt in ranks))

    run(test)
