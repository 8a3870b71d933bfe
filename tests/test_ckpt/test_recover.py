"""What the agents of a new attempt agree to restore, after every kind of loss."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from agent_kit import DEADLINES, RUN_ID, World, config, content, lose, run, until

from ckpt.agent.exchange import Exchange
from ckpt.agent.protect.node import ProtectNode
from ckpt.format.checksums import BLOCK_BYTES
from ckpt.format.shard_record import SaveId, read_record, write_record
from ckpt.tiers.mark import MARK, new_mark
from ckpt.tiers.posix import SharedTier
from ckpt.timeouts import AgentDeadlines

NODES = ["a", "b", "c", "d"]


def damage(path: Path, at: int = 100) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def records(ram_dir: Path, kind: str = "") -> dict[str, tuple[int, int]]:
    """Step and rank of the shards in a memory directory."""
    found = {}
    for path in ram_dir.glob(f"{kind}*.json"):
        record = read_record(ram_dir, path.stem)
        found[path.stem] = (record.save.step, record.rank)
    return found


def expected(world_size: int, step: int) -> list[bytes]:
    return [content(rank, step) for rank in range(world_size)]


@pytest.mark.parametrize("lost", [c for n in range(5) for c in combinations(NODES, n)], ids="".join)
def test_every_loss_that_the_scheme_covers_is_rebuilt_and_every_other_is_told(tmp_path, lost):
    """A replacement takes each lost node's position, so that other ranks stay where their memory is."""
    survives = all(NODES[(NODES.index(node) + 1) % 4] not in lost for node in lost)

    async def test():
        async with World(tmp_path, NODES, 0, config(), ranks_per_node=2) as world:
            await world.save(10, 0)
            await world.save(20, 1)
        lose(tmp_path, *lost)
        nodes = [f"spare-{node}" if node in lost else node for node in NODES]
        async with World(tmp_path, nodes, 1, config(), ranks_per_node=2) as world:
            plan = await world.plan()
            if survives:
                assert (plan["step"], plan["attempt"], plan["tier"]) == (20, 0, "memory")
                for worker in world.workers:
                    assert [await worker.read(rank) for rank in range(8)] == expected(8, 20)
                for node, place in enumerate(world.places):
                    rebuilt = world.monitors[node].seen("rebuilt")
                    assert len(rebuilt) == (2 if place.node.startswith("spare") else 0)
                await until(lambda: all(len(set(records(p.ram_dir).values())) >= 4 for p in world.places))
            else:
                assert (plan["step"], plan["tier"]) == (None, "none")
                assert [skipped["step"] for skipped in plan["skipped"]] == ([20, 10] if len(lost) < 4 else [])

    run(test)


def test_after_a_rebuild_a_second_loss_is_survived_too(tmp_path):
    async def test():
        nodes = ["a", "b", "c"]
        async with World(tmp_path, nodes, 0, config()) as world:
            await world.save(10, 0)
        for attempt, position in enumerate((1, 2, 0, 1), start=1):
            lose(tmp_path, nodes[position])
            nodes[position] = f"spare-{attempt}"
            async with World(tmp_path, nodes, attempt, config()) as world:
                assert (await world.plan())["step"] == 10
                assert await world.contents(3) == expected(3, 10)
                # A new node's own shard is there with the plan; its copy for the node before it follows.
                await until(lambda w=world: all(len(records(place.ram_dir)) == 2 for place in w.places))

    run(test)


@pytest.mark.parametrize("is_lost", [False, True])
def test_redundancy_is_checked_after_the_load_where_nothing_was_lost_and_made_at_once_elsewhere(
    tmp_path, monkeypatch, is_lost
):
    loaded_before, make = [], ProtectNode.make

    def noted(self, *arguments):
        loaded_before.append(self._context.workers_loaded.is_set())
        return make(self, *arguments)

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
        monkeypatch.setattr(ProtectNode, "make", noted)
        if is_lost:
            lose(tmp_path, "b")
        async with World(tmp_path, ["a", "b"], 1, config(), deadlines=replace(DEADLINES, load_s=600)) as world:
            assert (await world.plan())["step"] == 10
            if not is_lost:
                for worker in world.workers:
                    worker.send(op="load_ended")
            await until(lambda: len(loaded_before) == 2)
            assert loaded_before == [not is_lost] * 2

    run(test)


def test_the_sources_of_a_plan_are_named(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b", "c"], 0, config()) as world:
            await world.save(10, 0)
        lose(tmp_path, "b")
        async with World(tmp_path, ["a", "x", "c"], 1, config()) as world:
            event = await world.monitors[2].event("restore_plan")
            assert event["sources"] == {"own": [0, 2], "partner@c": [1]}
            assert (event["step"], event["attempt_of_step"], event["tier"]) == (10, 0, "memory")
            rebuilt = await world.monitors[1].event("rebuilt")
            assert (rebuilt["rank"], rebuilt["from_node"], rebuilt["bytes"]) == (1, "c", len(content(1, 10)))

    run(test)


@pytest.mark.parametrize("name", ["own-0-1.data", "own-0-1.json"])
def test_a_damaged_shard_is_replaced_by_its_copy(tmp_path, name):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
            await world.save(20, 1)
        damage(tmp_path / "a" / name)
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            plan = await world.plan()
            assert (plan["step"], plan["skipped"]) == (20, [])
            assert await world.contents(2) == expected(2, 20)
            assert (await world.monitors[0].event("rebuilt"))["rank"] == 0

    run(test)


def test_a_damaged_copy_is_made_again(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
        damage(tmp_path / "b" / "copy-0-0-0.data")
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            assert (await world.plan())["step"] == 10
            copy = tmp_path / "b" / "copy-0-0-0"
            await until(lambda: copy.with_suffix(".data").read_bytes() == content(0, 10))
            await until(copy.with_suffix(".json").exists)

    run(test)


def test_when_all_copies_of_a_shard_are_damaged_the_step_before_is_taken_and_it_is_said_why(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
            await world.save(20, 1)
        damage(tmp_path / "a" / "own-0-1.data")
        damage(tmp_path / "b" / "copy-0-0-1.data")
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            plan = await world.plan()
            assert plan["step"] == 10
            assert plan["skipped"] == [
                {"step": 20, "reason": "rank 0 of 2: no node's memory holds a shard that verifies"}
            ]
            assert await world.contents(2) == expected(2, 10)

    run(test)


def test_a_torn_save_is_passed_over(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
            await world.tear(20, 1, node=0)
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            plan = await world.plan()
            assert (plan["step"], [skipped["step"] for skipped in plan["skipped"]]) == (10, [20])

    run(test)


def test_a_rebuild_overwrites_nothing_valid_and_later_saves_clear_what_lies_beyond_the_slots(tmp_path):
    """Both slots of rank 1 are full: one with the torn step 20; the shard of step 10, lost there, needs a third."""

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
            await world.tear(20, 1, node=1)
        source = tmp_path / "b" / "own-0-1"
        other = tmp_path / "b" / "own-0-0"  # step 10 lost, a third valid step in its slot
        record = read_record(source.parent, source.name)
        other.with_suffix(".data").write_bytes(source.with_suffix(".data").read_bytes())
        write_record(other.parent, other.name, replace(record, save=SaveId(step=30, attempt=0, run_id=RUN_ID)))
        before = {name: what for name, what in records(tmp_path / "b").items() if name.startswith("own")}
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            assert (await world.plan())["step"] == 10
            after = records(tmp_path / "b")
            assert before.items() <= after.items() and after["own-0-2"] == (10, 1)
            assert await world.contents(2) == expected(2, 10)
            await world.save(40, 0)
            assert not list((tmp_path / "b").glob("own-0-2.*"))

    run(test)


def test_the_same_step_of_two_attempts_is_never_mixed(tmp_path):
    """Attempt 1 repeats step 20 and is killed half way; its shard and those of attempt 0 must not be put together."""

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(scheme="none")) as world:
            await world.save(20, 0)
        async with World(tmp_path, ["a", "b"], 1, config(scheme="none")) as world:
            await world.plan()
            await world.tear(20, 1, 0, b"other bytes of the same step")
            assert len(records(tmp_path / "a")) == 2
        async with World(tmp_path, ["a", "b"], 2, config(scheme="none")) as world:
            plan = await world.plan()
            assert (plan["step"], plan["attempt"]) == (20, 0)
            assert await world.contents(2) == expected(2, 20)

    run(test)


def test_of_one_step_the_latest_attempt_is_taken(tmp_path):
    async def test():
        for attempt in (0, 1):
            async with World(tmp_path, ["a", "b"], attempt, config()) as world:
                await world.plan()
                for worker in world.workers:
                    worker.save(20, attempt, bytes([attempt]) * 1000)
                for worker in world.workers:
                    await worker.event("committed", step=20)
        async with World(tmp_path, ["a", "b"], 2, config()) as world:
            assert (await world.plan())["attempt"] == 1
            assert await world.contents(2) == [b"\1" * 1000] * 2

    run(test)


def test_records_of_another_run_or_namespace_are_not_ours(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            await world.save(10, 0)
        ram_dir = tmp_path / "a"
        record = read_record(ram_dir, "own-0-0")
        write_record(ram_dir, "own-0-0", replace(record, namespace="another"))
        async with World(tmp_path, ["a"], 1, config()) as world:
            assert (await world.plan())["step"] is None

    run(test)


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(["a"], 1), (["a"], 4), (["a", "b", "c"], 1), (["b", "a"], 2)])
def test_any_other_world_can_read_every_saved_rank(tmp_path, nodes, ranks_per_node):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(), ranks_per_node=2) as world:
            await world.save(10, 0)
        async with World(tmp_path, nodes, 1, config(), ranks_per_node) as world:
            plan = await world.plan()
            assert (plan["step"], plan["world_size"]) == (10, 4)
            for worker in world.workers:
                assert [await worker.read(rank) for rank in range(4)] == expected(4, 10)
            for worker in world.workers:
                worker.send(op="load_ended", step=10)
            await until(lambda: not any(list(place.ram_dir.glob("fetch-*")) for place in world.places))
            await world.save(20, 1)
            assert records(tmp_path / nodes[0])["own-0-1"][0] == 20

    run(test)


def test_only_the_blocks_asked_for_are_fetched_and_a_record_costs_no_file(tmp_path):
    data = [bytes([rank + 1]) * (3 * BLOCK_BYTES + 17) for rank in range(2)]

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(scheme="none")) as world:
            for worker in world.workers:
                worker.save(10, 0, data[worker.rank])
            for worker in world.workers:
                await worker.event("committed")
        async with World(tmp_path, ["a", "b"], 1, config(scheme="none")) as world:
            await world.plan()
            fetched = tmp_path / "a" / "fetch-1.data"
            answer = await world.workers[0].request("open", rank=1, blocks=[])
            assert answer["record"]["rank"] == 1 and not fetched.exists()
            part = await world.workers[0].read(1, [1, 3])
            block = [part[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES] for i in range(4)]
            assert block[1] == data[1][:BLOCK_BYTES] and block[3] == data[1][:17] and not any(block[0])
            assert fetched.stat().st_blocks * 512 < 2 * BLOCK_BYTES
            assert await world.workers[0].read(1) == data[1]
            assert "error" in await world.workers[0].request("open", rank=1, blocks=[4])
            assert "error" in await world.workers[0].request("open", rank=2, blocks=None)

    run(test)


def test_what_a_worker_finds_damaged_is_answered_from_another_source_until_none_is_left(tmp_path):
    """Damage after the plan: rank 0's own shard on a, then the copy that b holds."""

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            await world.plan()
            worker = world.workers[0]
            own = (await worker.request("open", rank=0, blocks=None))["path"]
            assert own.endswith("own-0-0.data")
            damage(Path(own))
            worker.send(op="damaged", rank=0, block=0, path=own)
            copy = (await worker.request("open", rank=0, blocks=None))["path"]
            assert copy.endswith("fetch-0.data") and Path(copy).read_bytes() == content(0, 10)
            assert "own-0-0" not in records(tmp_path / "a")
            damage(tmp_path / "b" / "copy-0-0-0.data")
            worker.send(op="damaged", rank=0, block=0, path=copy)
            answer = await worker.request("open", rank=0, blocks=None)
            assert "rank 0 of step 10: no source left" in answer["error"]
            await until(lambda: (10, 0) not in records(tmp_path / "b").values())
        async with World(tmp_path, ["a", "b"], 2, config()) as world:
            assert (await world.plan())["step"] is None

    run(test)


def test_without_an_answer_from_a_node_there_is_no_plan_and_workers_are_told(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
        world = World(tmp_path, ["a", "b"], 1, config(), deadlines=AgentDeadlines(answer_s=0.3, restore_s=0.3))
        world.fake.dead.add(1)
        async with world:
            answer = await world.workers[0].request("plan")
            assert "node b: no answer" in answer["error"]
            await world.monitors[0].event("problem", what="no restore agreed")

    run(test)


class TestSharedTier:
    """The lower tier takes part: alone, or for what memory lost."""

    def test_all_memory_lost_the_shared_tier_restores(self, tmp_path):
        async def test():
            checkpoint = config(tmp_path / "shared")
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                await world.save(10, 0)
                await world.save(15, 1)
                await world.await_saves()
            lose(tmp_path, "a", "b")
            async with World(tmp_path, ["x", "y"], 1, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"], plan["attempt"]) == (10, "shared", 0)
                assert (await world.monitors[0].event("restore_plan"))["sources"] == {"shared": [0, 1]}
                assert await world.contents(2) == expected(2, 10)

        run(test)

    def test_only_what_memory_lost_comes_from_the_shared_tier(self, tmp_path):
        async def test():
            checkpoint = config(tmp_path / "shared", scheme="none")
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                await world.save(10, 0)
                await world.await_saves()
            lose(tmp_path, "b")
            async with World(tmp_path, ["a", "y"], 1, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"]) == (10, "shared")
                assert (await world.monitors[0].event("restore_plan"))["sources"] == {"own": [0], "shared": [1]}
                assert await world.contents(2) == expected(2, 10)

        run(test)

    def test_newer_memory_beats_older_shared(self, tmp_path):
        async def test():
            checkpoint = config(tmp_path / "shared")
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                await world.save(10, 0)
                await world.save(15, 1)
                await world.await_saves()
            async with World(tmp_path, ["a", "b"], 1, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"], plan["skipped"]) == (15, "memory", [])

        run(test)

    def test_damage_in_the_shared_tier_passes_the_step_over(self, tmp_path):
        async def test():
            checkpoint = config(tmp_path / "shared")
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                for slot, step in enumerate((10, 20)):
                    await world.save(step, slot)
                    await world.await_saves()
            lose(tmp_path, "a", "b")
            damage(next((tmp_path / "shared").rglob("step-0000000020*/node-00001.data")))
            async with World(tmp_path, ["x", "y"], 1, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"]) == (10, "shared")
                assert plan["skipped"][0]["step"] == 20 and "block 0 of rank 1" in plan["skipped"][0]["reason"]
                assert await world.contents(2) == expected(2, 10)

        run(test)

    def test_a_step_that_goes_away_after_it_was_listed_is_passed_over(self, tmp_path, monkeypatch):
        async def test():
            checkpoint = config(tmp_path / "shared")
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                for slot, step in enumerate((10, 20)):
                    await world.save(step, slot)
                    await world.await_saves()
            lose(tmp_path, "a", "b")
            read_manifest = SharedTier.read_manifest

            def gone(self, save):
                if save.step == 20:
                    raise FileNotFoundError("manifest.json")
                return read_manifest(self, save)

            monkeypatch.setattr(SharedTier, "read_manifest", gone)
            async with World(tmp_path, ["x", "y"], 1, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], plan["skipped"]) == (
                    10,
                    [{"step": 20, "reason": "shared tier: manifest.json"}],
                )

        run(test)

    def test_a_damaged_block_found_at_load_falls_back_from_memory_to_the_shared_tier(self, tmp_path):
        async def test():
            checkpoint = config(tmp_path / "shared", scheme="none")
            async with World(tmp_path, ["a"], 0, checkpoint) as world:
                await world.save(10, 0)
                await world.await_saves()
            async with World(tmp_path, ["a"], 1, checkpoint) as world:
                await world.plan()
                path = (await world.workers[0].request("open", rank=0, blocks=None))["path"]
                world.workers[0].send(op="damaged", rank=0, block=0, path=path)
                reply = await world.workers[0].request("open", rank=0, blocks=None)
                assert "shared" in reply["path"]
                world.workers[0].send(op="damaged", rank=0, block=0, path=reply["path"])
                assert "no source left" in (await world.workers[0].request("open", rank=0, blocks=None))["error"]

        run(test)

    def test_of_one_step_that_two_runs_have_saved_each_restores_its_own(self, tmp_path, monkeypatch):
        """The other's came later, so it is the first in the tier's own order."""

        async def test():
            async with World(tmp_path, ["a"], 0, config(tmp_path / "shared")) as world:
                await world.save(10, 0)
                await world.await_saves()
            monkeypatch.setattr("agent_kit.RUN_ID", "run-2")
            async with World(tmp_path, ["b"], 0, config(tmp_path / "shared")) as world:
                assert (await world.plan())["step"] == 10
                world.workers[0].save(10, 0, data=content(0, 99))
                await world.workers[0].event("committed", step=10)
                await world.await_saves()
            for run_id, saved_as in (("run-1", 10), ("run-2", 99)):
                monkeypatch.setattr("agent_kit.RUN_ID", run_id)
                lose(tmp_path, *(name for name in ("a", "b") if (tmp_path / name).exists()))
                async with World(tmp_path, ["a"], 1, config(tmp_path / "shared")) as world:
                    assert (await world.plan())["step"] == 10
                    assert await world.contents(1) == [content(0, saved_as)]

        run(test)

    def test_another_run_of_the_namespace_goes_on_from_the_shared_tier(self, tmp_path, monkeypatch):
        async def test():
            checkpoint = config(tmp_path / "shared")
            async with World(tmp_path, ["a"], 0, checkpoint) as world:
                await world.save(10, 0)
                await world.await_saves()
            lose(tmp_path, "a")
            monkeypatch.setattr("agent_kit.RUN_ID", "run-2")
            async with World(tmp_path, ["b", "c"], 0, checkpoint) as world:
                plan = await world.plan()
                assert (plan["step"], plan["tier"], plan["world_size"]) == (10, "shared", 1)
                assert await world.contents(1) == expected(1, 10)

        run(test)

    @pytest.mark.parametrize("why", ["a file where the folder should be", "another's mark"])
    def test_a_tier_that_cannot_be_read_is_no_reason_to_start_at_zero(self, tmp_path, why):
        async def test():
            (tmp_path / "shared").mkdir()
            folder = tmp_path / "shared" / "test"
            if why == "another's mark":
                folder.mkdir()
                folder = folder / MARK
            folder.write_bytes(new_mark("other"))
            checkpoint = config(tmp_path / "shared")
            async with World(tmp_path, ["a", "b"], 0, checkpoint) as world:
                answer = await world.workers[0].request("plan")
                assert "the shared tier cannot be read" in answer["error"]
            async with World(tmp_path, ["a", "b"], 1, config()) as world:
                await world.save(10, 1)
            async with World(tmp_path, ["a", "b"], 2, checkpoint) as world:
                assert (await world.plan())["step"] == 10

        run(test)


def test_after_a_restore_into_another_world_size_another_node_may_be_lost_at_once(tmp_path):
    """Before the first save of the new world: what one node alone holds gets a copy again."""

    def holders(nodes: list[str]) -> dict[int, int]:
        ranks = [rank for node in nodes for _, rank in records(tmp_path / node).values()]
        return {rank: ranks.count(rank) for rank in range(4)}

    async def test():
        async with World(tmp_path, NODES, 0, config()) as world:
            await world.save(10, 0)
        lose(tmp_path, "d")
        async with World(tmp_path, NODES[:3], 1, config()) as world:
            assert (await world.plan())["step"] == 10
            assert await world.contents(4) == expected(4, 10)
            await until(lambda: min(holders(NODES[:3]).values()) == 2)
        lose(tmp_path, "a")  # alone held rank 0, whose copy d was to have, and rank 3's
        async with World(tmp_path, NODES[1:3], 2, config()) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (10, "memory")
            assert await world.contents(4) == expected(4, 10)

    run(test)


def test_other_nodes_load_while_a_lost_shard_is_still_on_its_way(tmp_path, monkeypatch):
    """Degraded read: what survives is served before what was lost is back."""

    async def test():
        async with World(tmp_path, NODES, 0, config()) as world:
            await world.save(10, 0)
        lose(tmp_path, "c")
        go, pull = asyncio.Event(), Exchange.pull

        async def slow(self, *args):
            await go.wait()
            return await pull(self, *args)

        monkeypatch.setattr(Exchange, "pull", slow)
        async with World(tmp_path, ["a", "b", "spare", "d"], 1, config()) as world:
            assert (await world.workers[0].request("plan"))["step"] == 10
            assert [await world.workers[3].read(rank) for rank in range(4)] == expected(4, 10)
            assert not world.monitors[2].seen("rebuilt")
            go.set()
            await world.monitors[2].event("rebuilt", rank=2)
            assert await world.workers[2].read(2) == expected(4, 10)[2]

    run(test)


def test_the_shards_of_a_node_come_back_two_at_a_time(tmp_path, monkeypatch):
    under_way, most, pull = [], [], Exchange.pull

    async def counted(self, node, save, rank, name):
        if not name.startswith("own-"):
            return await pull(self, node, save, rank, name)
        under_way.append(rank)
        await until(lambda: len(under_way) == 2 or len(most) > 2)  # the last one has nobody beside it
        most.append(len(under_way))
        record = await pull(self, node, save, rank, name)
        under_way.remove(rank)
        return record

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(), ranks_per_node=4) as world:
            await world.save(10, 0)
        lose(tmp_path, "b")
        monkeypatch.setattr(Exchange, "pull", counted)
        async with World(tmp_path, ["a", "x"], 1, config(), ranks_per_node=4) as world:
            assert (await world.workers[7].request("plan"))["step"] == 10
            assert len(most) == 4 and max(most) == 2
            assert await world.contents(8) == expected(8, 10)

    run(test)
