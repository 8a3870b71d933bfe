"""Large tensors that every rank stores although they are equal on all ranks are reported once, by their checksums."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agent_kit import World, config, content, run, save_id
from world_kit import World as Ranks

from ckpt import Checkpointer
from ckpt.agent.save.alike import LEAST_BYTES, Alike, compare, rows_of
from ckpt.format.checksums import BLOCK_BYTES, checksums
from ckpt.format.layout import Chunk, Layout, align
from ckpt.format.rank_grid import Spread
from ckpt.format.shard_record import ShardRecord, read_record

MIB = 1 << 20
BIG = LEAST_BYTES + 3 * MIB


def random(nbytes: int, seed: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def record(rank: int, spread: tuple[str, ...] = (), **tensors: np.ndarray[Any, Any]) -> ShardRecord:
    """What an agent seals of these tensors."""
    chunks, parts, start = [], [], 0
    for name, data in tensors.items():
        size = (data.nbytes,)
        at = dict(start=start, nbytes=data.nbytes, spread=0 if name in spread else None)
        key = name.replace("__", "/")
        chunks.append(Chunk(key=key, dtype="uint8", shape=size, offsets=(0,), sizes=size, **at))
        parts.append(data.tobytes() + bytes(align(data.nbytes) - data.nbytes))
        start += align(data.nbytes)
    whole = b"".join(parts)
    spreads = (Spread(shape=(2,), ranks=range(2), splits=()),) if spread else ()
    made = Layout(chunks=tuple(chunks), tree={}, nbytes=len(whole), spreads=spreads)
    blocks = checksums(memoryview(whole))
    return ShardRecord(save=save_id(1), namespace="ns", rank=rank, world_size=2, layout=made, blocks=blocks)


def of_two_nodes(first: ShardRecord, second: ShardRecord) -> Alike | None:
    return compare([rows_of([first]), rows_of([second])])


def of_one_node(first: ShardRecord, second: ShardRecord) -> Alike | None:
    return compare([rows_of([first, second])])


@pytest.mark.parametrize("found", [of_one_node, of_two_nodes])
def test_an_equal_model_is_named_by_its_container_beside_state_of_each_rank(found: Any) -> None:
    alike = found(
        *(record(r, rng=random(5000, r), model__a=random(BIG), model__b=random(2 * MIB), own=random(9 * MIB, r))
          for r in range(2))
    )  # fmt: skip
    assert alike.keys == ("model",)
    assert alike.nbytes == BIG
    assert f"{BIG} bytes" in alike.message and 'replicated=["model"]' in alike.message


def test_a_container_that_has_a_large_tensor_which_differs_is_not_named() -> None:
    ranks = (record(r, m__a=random(BIG), m__b=random(9 * MIB, r), m__c__d=random(9 * MIB)) for r in range(2))
    alike = of_two_nodes(*ranks)
    assert alike and alike.keys == ("m/a", "m/c")


SILENT: dict[str, Any] = {
    "they differ": lambda r: record(r, w=random(BIG, r)),
    "they differ in one block": lambda r: record(r, w=np.append(random(BIG), random(BLOCK_BYTES + MIB, r))),
    "zeros that an optimizer starts with": lambda r: record(r, head=random(99, r), exp_avg=np.zeros(BIG, np.uint8)),
    "small": lambda r: record(r, w=random(LEAST_BYTES - 1)),
    "many small tensors": lambda r: record(r, **{f"w{n}": random(MIB // 2) for n in range(80)}),
    "each stores a part": lambda r: record(r, spread=("w",), w=random(BIG)),
    "of one rank only": lambda r: record(r, **{f"w{r}": random(BIG)}),
    "of another size": lambda r: record(r, w=random(BIG + r * BLOCK_BYTES)),
}  # fmt: skip


@pytest.mark.parametrize("made", SILENT.values(), ids=SILENT)
def test_nothing_is_said_about_other_tensors(made: Any) -> None:
    assert of_two_nodes(made(0), made(1)) is None


def test_agents_report_it_once_in_a_run(tmp_path: Path) -> None:
    whole = os.urandom(MIB) * (BIG // MIB)

    async def attempt(number: int, *steps: int, generation: int = 0) -> list[dict[str, Any]]:
        async with World(tmp_path, ["a", "b"], number, config(), generation=generation) as world:
            if generation:
                await asyncio.gather(*(worker.request("rejoin", generation=0) for worker in world.workers))
            else:
                await world.plan()
            for slot, step in enumerate(steps):
                for worker in world.workers:
                    worker.save(step, slot, whole)
                for worker in world.workers:
                    await worker.event("committed", step=step)
            if number == generation == 0:
                await world.monitors[0].event("problem", what="every rank stores equal tensors", step=steps[0])
            return [event for monitor in world.monitors for event in monitor.seen("problem")]

    async def test() -> None:
        (reported,) = await attempt(0, 10, 20)
        assert "'x'" in reported["detail"] and str(BIG) in reported["detail"]
        assert await attempt(0, 30, generation=1) == []
        assert await attempt(1, 40, 50) == []

    run(test)


def test_agents_say_nothing_about_ranks_that_differ(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.plan()
            for slot, step in enumerate((10, 20)):
                for worker in world.workers:
                    worker.save(step, slot, content(worker.rank, step, BIG))
                for worker in world.workers:
                    await worker.event("committed", step=step)
            assert not [event for monitor in world.monitors for event in monitor.seen("problem")]

    run(test)


def save_unwrapped(ckpt: Checkpointer, rank: int) -> None:
    torch.manual_seed(1)
    net = torch.nn.Linear(3000, 3000)
    model = torch.nn.parallel.DistributedDataParallel(net)
    ckpt.load(state := {"model": model.module.state_dict(), "wrapped": model, "own": torch.full((99,), rank)})
    ckpt.save(1, state)
    ckpt.newest_step  # noqa: B018 - waits for the commit


def test_the_module_of_ddp_is_found_and_ddp_itself_is_not(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.run(2, save_unwrapped)
    records = [read_record(ranks.ram_dir, f"own-{rank}-0") for rank in range(2)]
    alike = compare([rows_of(records)])
    assert alike and (alike.keys, alike.nbytes) == (("model",), 4 * 3000 * 3000)
