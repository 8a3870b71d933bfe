"""What a node has sealed, promised or committed stays, whatever else is saved, restored or given up beside it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_kit import DEADLINES, LINE, World, config, content, copies, lose, run, until

from ckpt.agent.exchange import Exchange
from ckpt.errors import AgentError
from ckpt.format.shard_record import SaveId


def test_a_save_is_complete_when_every_rank_of_every_node_has_sealed_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a"], 0, config(), ranks_per_node=2) as world:
            first, second = world.workers
            first.save(10, 0)
            await until(lambda: world.has_sealed(0, 10))
            second.save(10, 0)
            await world.monitors[0].event("commit", step=10, bytes=2 * len(content(0, 10)))
            await second.event("committed", step=10)

    run(test)


def test_shards_that_do_not_have_all_tensors_together_are_never_found(tmp_path: Path) -> None:
    """Every rank's shard of step 20 is sealed, but the ranks disagree on what they share."""

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
            for worker in world.workers:
                worker.save(20, 1, tokens={f"of rank {worker.rank}": 2})
            dropped = [await worker.event("dropped", step=20) for worker in world.workers]
            assert all(event["replicas_differ"] for event in dropped)
            await world.kill()
            async with World(tmp_path, ["a", "b"], 0, config(), generation=1) as renewed:
                answers = await asyncio.gather(*(w.request("rejoin", generation=0) for w in renewed.workers))
                assert [answer["step"] for answer in answers] == [10, 10]
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            assert (await world.plan())["step"] == 10

    run(test)


def test_shards_that_were_never_compared_are_not_found(tmp_path: Path) -> None:
    """The leader is killed between the last shard that is sealed and its decision."""

    async def silent(source: int, **fields: Any) -> None:
        await asyncio.Event().wait()

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
            world.agents[0]._peers._handlers["sealed"] = silent
            for worker in world.workers:
                worker.save(20, 1, tokens={f"of rank {worker.rank}": 2})
            await until(lambda: all(world.has_sealed(node, 20) for node in range(2)))
            await world.kill()
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            assert (await world.plan())["step"] == 10

    run(test)


@pytest.mark.parametrize("told_first", [False, True])
def test_a_step_that_one_rank_of_a_node_has_missed_is_waited_for_by_no_other(tmp_path: Path, told_first: bool) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config(), ranks_per_node=2, generation=1) as world:
            first, second = world.workers[:2]
            await asyncio.gather(*(worker.request("rejoin", generation=0) for worker in world.workers))
            if told_first:
                await second.request("drop_up_to", step=20, rank=1, descent=LINE.to_json())
            first.save(20, 0)
            if not told_first:
                await until(lambda: world.has_sealed(0, 20))
                second.send(op="drop_up_to", step=20, rank=1, descent=LINE.to_json())
            reason = (await first.event("dropped", step=20))["reason"]
            assert ("dropped already" if told_first else "rank 1 was without an agent") in reason

    run(test)


def test_a_rank_that_comes_late_with_what_another_of_its_node_has_given_up_is_told_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config(), ranks_per_node=2) as world:
            first, late = world.workers[:2]
            first.send(op="drop_shard", step=10, rank=0, descent=LINE.to_json(), reason="no memory")
            await late.event("dropped", step=10)
            late.messages.clear()
            late.save(10, 0)
            assert (await late.event("dropped", step=10))["reason"] == "dropped already"
            await world.save(20, 1)

    run(test)


def test_a_save_given_up_in_the_middle_of_its_redundancy_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator hears at once that no answer will come; else it would wait for one for minutes."""
    pull, begun = Exchange.pull, asyncio.Event()

    async def stuck(self: Exchange, node: int, save: Any, rank: int, name: str) -> Any:
        if save.step == 20:
            begun.set()
            await asyncio.Event().wait()
        return await pull(self, node, save, rank, name)

    async def test() -> None:
        deadlines = replace(DEADLINES, protect_s=600)
        async with World(tmp_path, ["a", "b", "c"], 0, config(), deadlines=deadlines) as world:
            monkeypatch.setattr(Exchange, "pull", stuck)
            for worker in world.workers:
                worker.save(20, 0)
            await begun.wait()
            world.workers[2].send(op="drop_shard", step=20, rank=2, descent=LINE.to_json(), reason="on second thoughts")
            for worker in world.workers:
                await worker.event("dropped", step=20)
            await world.save(30, 1)

    run(test)


def test_saves_that_fail_one_after_another_cost_no_copy_of_the_committed_one(tmp_path: Path) -> None:
    """Node b has copies of the failed ones, node c refuses; then a is lost with what it alone had."""

    async def refuse(source: int, save: SaveId) -> None:
        await until(lambda: save.step in copies(tmp_path / "b"))
        raise AgentError("no memory")

    async def test() -> None:
        async with World(tmp_path, ["a", "b", "c"], 0, config(keep=2)) as world:
            await world.save(10, 0)
            world.agents[2]._peers._handlers["protect"] = refuse
            for step in (20, 30, 40):
                for worker in world.workers:
                    worker.save(step, 1)
                for worker in world.workers:
                    await worker.event("dropped", step=step)
                assert 10 in copies(tmp_path / "b")
        lose(tmp_path, "a")
        (tmp_path / "c" / "own-0-1.json").unlink()  # none of the others is whole any more
        async with World(tmp_path, ["x", "b", "c"], 1, config()) as world:
            assert (await world.plan())["step"] == 10
            assert await world.contents(3) == [content(rank, 10) for rank in range(3)]

    run(test)


def test_a_save_beside_the_redundancy_of_a_restored_step_takes_no_place_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new node copies the restored step for a second time as the first save of the attempt wants a copy too."""
    pull, begun, go = Exchange.pull, asyncio.Event(), asyncio.Event()

    async def slow(self: Exchange, node: int, save: Any, rank: int, name: str) -> Any:
        if name.startswith("copy") and save.step == 10:
            begun.set()
            await go.wait()
        return await pull(self, node, save, rank, name)

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
        lose(tmp_path, "b")
        monkeypatch.setattr(Exchange, "pull", slow)
        async with World(tmp_path, ["a", "x"], 1, config()) as world:
            await world.plan()
            await begun.wait()
            protect = world.agents[1]._saving._on_protect

            async def release(source: int, save: SaveId) -> None:
                asyncio.get_running_loop().call_soon(go.set)
                await protect(source, save)

            world.agents[1]._peers._handlers["protect"] = release
            await world.save(30, 1)
            await until(lambda: copies(tmp_path / "x") == {10, 30})
        lose(tmp_path, "a")
        async with World(tmp_path, ["y", "x"], 2, config()) as world:
            assert (await world.plan())["step"] == 30
            assert await world.contents(2) == [content(rank, 30) for rank in range(2)]

    run(test)


def test_the_first_copies_beside_what_another_world_has_saved_outlive_their_commit(tmp_path: Path) -> None:
    """They lie beyond the slots, as nothing could be replaced: the commit gives back all but them."""

    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.plan()
            await world.save(10, slot=0)
        async with World(tmp_path, ["a", "b"], 1, config(), ranks_per_node=2, generation=1) as world:
            for worker in world.workers:
                await worker.request("rejoin", generation=0)
            await world.save_unheard(20, 30, slot=1)
            await world.save(40, slot=0)
            for worker in world.workers:
                await worker.event("dropped", step=20)
                await worker.event("dropped", step=30)
            await world.await_saves()  # nobody waits for a commit that will not be heard of any more
        lose(tmp_path, "a")
        async with World(tmp_path, ["x", "b"], 2, config(), ranks_per_node=2) as world:
            assert (await world.plan())["step"] == 40
            assert await world.contents(4) == [content(rank, 40) for rank in range(4)]

    run(test)
