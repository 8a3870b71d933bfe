"""Parity between agents: every loss that the scheme covers comes back, every other one is refused with the reason."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from dataclasses import replace
from itertools import combinations

import pytest
from agent_kit import World, config, content, lose, run, until
from parity_kit import NODES, SCHEMES, instead, of, parities, saved, small_pieces
from test_recover import damage, expected, records

from ckpt.agent.protect import encode as rows
from ckpt.agent.protect import gather_sum as sums
from ckpt.agent.protect.gather_sum import Sums
from ckpt.format.checksums import BLOCK_BYTES, checksums, damaged_blocks
from ckpt.redundancy.parity_record import read_parity, write_parity

LOSSES = [(name, lost) for name in SCHEMES for n in range(4) for lost in combinations(NODES, n)]
WITHIN = [(name, lost) for name, lost in LOSSES if len(lost) <= SCHEMES[name][1]]
BEYOND = [(name, lost) for name, lost in LOSSES if len(lost) > SCHEMES[name][1]]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    small_pieces(monkeypatch)


@pytest.mark.parametrize(("name", "lost"), WITHIN, ids=str)
def test_every_loss_within_the_promise_is_made_again(tmp_path, name, lost):
    async def test():
        await saved(tmp_path, of(name))
        lose(tmp_path, *lost)
        async with World(tmp_path, instead(lost), 1, of(name), ranks_per_node=2) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"], plan["skipped"]) == (20, "memory", [])
            for worker in world.workers:
                assert [await worker.read(rank) for rank in range(8)] == expected(8, 20)
            for node, place in enumerate(world.places):
                assert len(world.monitors[node].seen("rebuilt")) == (2 if place.node.startswith("spare") else 0)
            await until(lambda: all(20 in parities(place.ram_dir) for place in world.places))

    run(test)


@pytest.mark.parametrize(("name", "lost"), BEYOND, ids=str)
def test_every_loss_beyond_the_promise_is_refused_naming_why(tmp_path, name, lost):
    async def test():
        await saved(tmp_path, of(name), ranks_per_node=1)
        lose(tmp_path, *lost)
        async with World(tmp_path, instead(lost), 1, of(name)) as world:
            plan = await world.plan()
            assert (plan["step"], [skipped["step"] for skipped in plan["skipped"]]) == (None, [20, 10])
            reason = plan["skipped"][0]["reason"]
            assert "no rebuild from the parity of a, b, c, d: stripe" in reason and "are lost" in reason

    run(test)


@pytest.mark.parametrize("name", SCHEMES)
def test_after_a_rebuild_a_second_loss_is_survived_too(tmp_path, name):
    async def test():
        nodes = list(NODES)
        await saved(tmp_path, of(name), steps=(10,), ranks_per_node=1)
        for attempt, position in enumerate((1, 2, 0, 1), start=1):
            lose(tmp_path, nodes[position])
            nodes[position] = f"spare-{attempt}"
            async with World(tmp_path, nodes, attempt, of(name)) as world:
                assert (await world.plan())["step"] == 10
                assert await world.contents(4) == expected(4, 10)
                await until(lambda w=world: all(parities(place.ram_dir) == [10] for place in w.places))

    run(test)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("lengths", [[0, 9000, 1, 300, 0, 0, 5000, 63], [0] * 8, [0] * 7 + [701]], ids=str)
def test_shards_of_any_lengths_share_a_set(tmp_path, name, lengths):
    def data(rank, step):
        return content(rank, step, lengths[rank])

    async def test():
        await saved(tmp_path, of(name), data=data, steps=(10,))
        for node in NODES:
            lose(tmp_path, node)
            async with World(tmp_path, NODES, NODES.index(node) + 1, of(name), ranks_per_node=2) as world:
                assert (await world.plan())["step"] == 10
                assert await world.contents(8) == [data(rank, 10) for rank in range(8)]
                await until(lambda w=world: all(parities(place.ram_dir) == [10] for place in w.places))

    run(test)


def test_parity_takes_its_share_of_memory_and_no_more(tmp_path):
    async def test():
        await saved(tmp_path, of("xor"), steps=(10,), data=lambda rank, step: content(rank, step, 30_000))
        for node in NODES:
            (path,) = (tmp_path / node).glob("parity-*.data")
            assert path.stat().st_size == 20_032  # two shards over three nodes, to the next cache line
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.with_suffix(".json").stat().st_mode & 0o777 == 0o600

    run(test)


def test_losses_in_different_sets_do_not_add_up(tmp_path):
    """Five nodes in sets of about two: (a, c, e) and (b, d)."""
    nodes, checkpoint = ["a", "b", "c", "d", "e"], of("xor", group_size=2)

    async def test():
        await saved(tmp_path, checkpoint, nodes, ranks_per_node=1)
        lose(tmp_path, "a", "b")
        async with World(tmp_path, ["x", "y", "c", "d", "e"], 1, checkpoint) as world:
            assert (await world.plan())["step"] == 20
            assert await world.contents(5) == expected(5, 20)
        lose(tmp_path, "c", "e")
        async with World(tmp_path, ["x", "y", "z", "d", "w"], 2, checkpoint) as world:
            plan = await world.plan()
            assert plan["step"] is None and "the parity of" in plan["skipped"][0]["reason"]

    run(test)


@pytest.mark.parametrize(("nodes", "ranks_per_node"), [(["a", "c", "d"], 2), (["c", "a"], 1), (["d", "a"], 3)])
def test_fewer_nodes_of_another_shape_bring_a_lost_one_back(tmp_path, nodes, ranks_per_node):
    async def test():
        await saved(tmp_path, of("rs"))
        lose(tmp_path, *(set(NODES) - set(nodes)))
        async with World(tmp_path, nodes, 1, of("rs"), ranks_per_node) as world:
            plan = await world.plan()
            assert (plan["step"], plan["world_size"], plan["tier"]) == (20, 8, "memory")
            for worker in world.workers:
                assert [await worker.read(rank) for rank in range(8)] == expected(8, 20)
            await world.save(30, 1)
            assert not [path for place in world.places for path in place.ram_dir.glob("copy-*")]

    run(test)


@pytest.mark.parametrize(
    ("name", "first", "then", "left"),
    [
        ("xor", "abcd", "abc", "bc"),  # a has rank 0, and rank 3 of the lost d
        ("xor", "abcd", "abc", "ab"),
        ("rs", "abcd", "abc", "b"),
        ("rs", "abcd", "acd", "dc"),
        ("xor", "abc", "abcd", "bcd"),
        ("xor", "abc", "cxyab", "xyab"),
    ],
)
def test_after_a_restore_into_another_world_size_nodes_may_be_lost_at_once(tmp_path, name, first, then, left):
    """Before the first save of the new world: the restored step has parity over the new world's sets."""

    async def test():
        await saved(tmp_path, of(name), list(first))
        lose(tmp_path, *(set(first) - set(then)))
        async with World(tmp_path, list(then), 1, of(name)) as world:
            plan = await world.plan()
            assert (plan["step"], plan["world_size"], plan["tier"]) == (20, 2 * len(first), "memory")
            await until(lambda: all(tuple(then) in sets_of_newest(tmp_path / node) for node in then))
        lose(tmp_path, *(set(then) - set(left)))
        async with World(tmp_path, list(left), 2, of(name)) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"], plan["skipped"]) == (20, "memory", [])
            for worker in world.workers:
                assert [await worker.read(rank) for rank in range(2 * len(first))] == expected(2 * len(first), 20)
            again = [place.ram_dir for place in world.places if len(left) > 1]
            await until(lambda: all(tuple(left) in sets_of_newest(ram_dir) for ram_dir in again))
            await world.save(30, 0)  # a slot in which no shard of step 20 is
            await world.save(40, 1)
            assert all(len(parities(place.ram_dir)) <= 2 for place in world.places)

    run(test)


def sets_of_newest(ram_dir):
    """The sets of nodes over which a memory directory has parity of step 20."""
    found = [read_parity(ram_dir, path.stem) for path in ram_dir.glob("parity-*.json")]
    return [record.members for record in found if record.save.step == 20]


def test_a_damaged_shard_is_made_again_in_place_of_an_older_step(tmp_path):
    async def test():
        await saved(tmp_path, of("xor"))
        damage(tmp_path / "b" / "own-1-1.data")
        async with World(tmp_path, NODES, 1, of("xor"), ranks_per_node=2) as world:
            plan = await world.plan()
            assert (plan["step"], plan["skipped"]) == (20, [])
            assert await world.contents(8) == expected(8, 20)
            rebuilt = await world.monitors[1].event("rebuilt")
            assert (rebuilt["rank"], rebuilt["from_node"]) == (3, "the parity of a, b, c, d")
            plan_event = await world.monitors[0].event("restore_plan")
            assert plan_event["sources"]["parity"] == [3] and 2 in plan_event["sources"]["own"]

    run(test)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("kind", ["data", "json"])
def test_damaged_parity_is_made_again(tmp_path, kind, name):
    """By its node alone: the others, who have theirs, make none."""

    async def test():
        await saved(tmp_path, of(name), steps=(10,))
        good = (tmp_path / "c" / "parity-0.data").read_bytes()
        damage(tmp_path / "c" / f"parity-0.{kind}")
        async with World(tmp_path, NODES, 1, of(name), ranks_per_node=2) as world:
            assert (await world.plan())["step"] == 10
            again = tmp_path / "c" / "parity-0.data"
            await until(lambda: parities_or_none(tmp_path / "c") == [10] and again.read_bytes() == good)

    run(test)


def test_a_shard_that_a_disk_has_is_taken_from_there_and_not_made_again(tmp_path):
    """Beside it a lost one whose disk is lost too is made again: memory, parity and NVMe in one plan."""

    async def test():
        checkpoint = config(scheme="rs", parity=2, nvme={"path": str(tmp_path / "nvme"), "every_steps": 10})
        async with World(tmp_path, NODES, 0, checkpoint) as world:
            for worker in world.workers:
                worker.save(10, 0, content(worker.rank, 10))
            for worker in world.workers:
                flushed = await worker.event("flushed", step=10, tier="nvme")
                assert flushed["bytes"] > 0 and flushed["seconds"] > 0
        lose(tmp_path, "b", "d")
        shutil.rmtree(tmp_path / "nvme" / "d")
        async with World(tmp_path, ["a", "b", "c", "spare-d"], 1, checkpoint) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (10, "nvme")
            assert await world.contents(4) == expected(4, 10)
            sources = (await world.monitors[3].event("restore_plan"))["sources"]
            assert sources["parity"] == [3]
            assert any(1 in ranks for source, ranks in sources.items() if source.startswith("nvme"))
            await until(lambda: all(10 in parities(place.ram_dir) for place in world.places))

    run(test)


def parities_or_none(ram_dir):
    try:
        return parities(ram_dir)
    except Exception:
        return None


@pytest.mark.parametrize(("name", "step"), [("xor", 10), ("rs", 20)])
def test_damaged_parity_counts_as_lost_and_never_reaches_a_shard(tmp_path, name, step):
    """Beside a lost node it is one loss too many for XOR: the step before is taken. RS has another row."""

    async def test():
        await saved(tmp_path, of(name))
        lose(tmp_path, "a")
        damage(tmp_path / "c" / "parity-1.data")
        async with World(tmp_path, instead(["a"]), 1, of(name), ranks_per_node=2) as world:
            plan = await world.plan()
            assert plan["step"] == step
            assert await world.contents(8) == expected(8, step)
            problem = await world.monitors[0].event("problem", what="parity does not verify")
            assert problem["detail"] == "in the memory of c"
            if step == 10:
                assert "parity of a, b, c, d: stripe" in plan["skipped"][0]["reason"]

    run(test)


def test_a_rebuild_that_does_not_verify_is_not_offered(tmp_path):
    """Parity that matches its own record, and is wrong all the same."""

    async def test():
        await saved(tmp_path, of("xor"))
        ram_dir = tmp_path / "c"
        record = read_parity(ram_dir, "parity-1")
        damage(ram_dir / "parity-1.data")
        data = (ram_dir / "parity-1.data").read_bytes()[: record.nbytes]
        write_parity(ram_dir, "parity-1", replace(record, blocks=checksums(memoryview(data))))
        lose(tmp_path, "a")
        async with World(tmp_path, instead(["a"]), 1, of("xor"), ranks_per_node=2) as world:
            plan = await world.plan()
            assert plan["step"] == 10 and "does not verify" in plan["skipped"][0]["reason"]
            assert await world.contents(8) == expected(8, 10)
            assert (20, 0) not in records(tmp_path / "spare-a", "own").values()

    run(test)


def test_parity_of_the_newest_committed_step_stays_until_a_newer_commit(tmp_path):
    async def test():
        async with World(tmp_path, NODES, 0, of("xor")) as world:
            for i, step in enumerate((10, 20, 30)):
                await world.save(step, i % 2)
                assert all(step in parities(place.ram_dir) for place in world.places)
                assert all(len(parities(place.ram_dir)) <= 2 for place in world.places)
            names = {place.node: set(os.listdir(place.ram_dir)) for place in world.places}
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("ckpt.agent.shards.memory_store.os.posix_fallocate", full)
                for worker in world.workers:
                    worker.save(40, 1, content(worker.rank, 40, 9000))  # what is there does not suffice
                for worker in world.workers:
                    dropped = await worker.event("dropped", step=40)
                    assert "No space left" in dropped["reason"]
            assert all(30 in parities(place.ram_dir) for place in world.places)
            await world.save(50, 1)
            assert all(50 in parities(place.ram_dir) for place in world.places)
            assert all(set(os.listdir(place.ram_dir)) <= names[place.node] for place in world.places)

    run(test)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_rebuild_overwrites_nothing_valid(tmp_path):
    async def test():
        await saved(tmp_path, of("xor"), ranks_per_node=1)
        damage(tmp_path / "b" / "own-0-1.data")
        before = records(tmp_path / "b", "own")
        other = before.pop("own-0-1")
        async with World(tmp_path, NODES, 1, of("xor")) as world:
            assert (await world.plan())["step"] == 20
            after = records(tmp_path / "b", "own")
            assert before.items() <= after.items() and other in after.values()

    run(test)


def test_what_was_read_ahead_of_a_rebuild_that_failed_gives_its_memory_to_the_next_try(tmp_path, monkeypatch):
    """Memory is what it may have lacked."""
    pull, failed, later = Sums.pull, [], []

    def ahead():
        return [path.name for path in tmp_path.glob("*/fetch-*")]

    async def failing(*args, **more):
        if not failed:
            await until(lambda: ahead() == ["fetch-2.data"])
            failed.append(True)
            full()
        later.append(ahead())
        await pull(*args, **more)

    async def test():
        await saved(tmp_path, of("xor"), ranks_per_node=1)
        lose(tmp_path, "b")
        monkeypatch.setattr(Sums, "pull", failing)
        async with World(tmp_path, ["a", "c", "d"], 1, of("xor")) as world:
            assert (await world.workers[2].request("foreseen"))["step"] == 20
            world.workers[2].send(op="prefetch", step=20, wants=[[2, None]])
            assert (await world.plan())["step"] == 20
            assert failed and len(later) >= 3 and not any(later[-3:]), "those of the three members in the next try"
            assert await world.contents(4) == expected(4, 20)

    run(test)


def test_parity_says_nothing_of_bytes_that_are_just_being_replaced(tmp_path, monkeypatch):
    """Killed at that moment it leaves no record that its bytes do not match."""
    make, begun = rows.Rows.make, []

    async def stuck(self, save, over, ready, into):
        await make(self, save, over, ready, into)
        begun.append(into)
        await asyncio.Event().wait()

    async def test():
        async with World(tmp_path, NODES, 0, of("xor")) as world:
            await world.save(10, 0)
            await world.save(20, 1)
            assert all(parities(place.ram_dir) == [10, 20] for place in world.places)
            monkeypatch.setattr(rows.Rows, "make", stuck)
            for worker in world.workers:
                worker.save(30, 0)
            await until(lambda: len(begun) == len(NODES))
            for place in world.places:
                for path in place.ram_dir.glob("parity-*.json"):
                    record, data = read_parity(place.ram_dir, path.stem), path.with_suffix(".data").read_bytes()
                    assert not damaged_blocks(memoryview(data)[: record.nbytes], record.blocks)
                assert parities(place.ram_dir) == [20]

    run(test)


def test_a_set_too_small_keeps_what_it_can_and_says_so(tmp_path, caplog):
    async def test():
        checkpoint = of("rs", parity=3)
        await saved(tmp_path, checkpoint, ["a", "b"], ranks_per_node=1)
        lose(tmp_path, "a")
        async with World(tmp_path, ["x", "b"], 1, checkpoint) as world:
            assert (await world.plan())["step"] == 20
            assert await world.contents(2) == expected(2, 20)

    run(test)
    assert "a set of 2 is too small to survive 3 lost, as configured: survives 1" in caplog.text


def test_another_step_of_the_same_set_never_mixes_in(tmp_path):
    """Parity of step 10 must not be used for step 20, whose parity is gone."""

    async def test():
        await saved(tmp_path, of("xor"), ranks_per_node=1)
        for node in NODES:
            (tmp_path / node / "parity-1.json").unlink()
        lose(tmp_path, "d")
        async with World(tmp_path, instead(["d"]), 1, of("xor")) as world:
            assert (await world.plan())["step"] == 10
            assert await world.contents(4) == expected(4, 10)

    run(test)


def test_large_shards_of_several_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(sums, "PIECE_BYTES", 512 << 10)
    monkeypatch.setattr(sums, "HELD", 8)
    sizes = [2 * BLOCK_BYTES + 17, BLOCK_BYTES, 3 * BLOCK_BYTES - 1]

    async def test():
        data = lambda rank, step: content(rank, step, sizes[rank])  # noqa: E731
        await saved(tmp_path, of("rs", parity=1), ["a", "b", "c"], 1, (10,), data)
        lose(tmp_path, "c")
        async with World(tmp_path, ["a", "b", "x"], 1, of("rs", parity=1)) as world:
            assert (await world.plan())["step"] == 10
            assert await world.contents(3) == [data(rank, 10) for rank in range(3)]

    run(test)
