"""Saves as the agents of an attempt lead them: seal, protect, commit, or drop."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from agent_kit import DEADLINES, LINE, Link, World, config, content, layout, run, until

from ckpt.agent.process.lifetime import MemoryDirectory
from ckpt.agent.rpc.peers import PeerError
from ckpt.agent.rpc.worker_socket import WorkerSocket
from ckpt.agent.shards.memory_store import MemoryStore
from ckpt.errors import AgentError, ConfigError, CorruptError
from ckpt.format.shard_record import read_record
from ckpt.timeouts import AgentDeadlines

QUICK = AgentDeadlines(answer_s=2, seal_s=0.3, protect_s=2)


def names(ram_dir: Path) -> set[str]:
    return {path.stem for path in ram_dir.glob("*.json")}


@pytest.mark.parametrize("ranks_per_node", [1, 2])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_save_commits_everywhere_and_a_copy_lies_on_the_next_node(tmp_path, size, ranks_per_node):
    async def test():
        async with World(tmp_path, [f"n{i}" for i in range(size)], 0, config(), ranks_per_node) as world:
            await world.save(10, 0)
            for monitor in world.monitors:
                commit = await monitor.event("commit", tier="memory", step=10)
                assert commit["bytes"] == size * ranks_per_node * len(content(0, 10))
        for node, place in enumerate(world.places):
            own = {f"own-{i}-0" for i in range(ranks_per_node)}
            source = (node - 1) % size
            copies = {f"copy-{source}-{i}-0" for i in range(ranks_per_node)} if size > 1 else set()
            assert names(place.ram_dir) == own | copies
            for name in own | copies:
                record = read_record(place.ram_dir, name)
                assert (place.ram_dir / f"{name}.data").read_bytes() == content(record.rank, 10)

    run(test)


def test_without_a_scheme_nothing_is_copied(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(scheme="none")) as world:
            await world.save(10, 0)
        assert all(names(place.ram_dir) == {"own-0-0"} for place in world.places)

    run(test)


def test_slots_are_reused_and_the_two_newest_steps_stay(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            for step in range(1, 6):
                await world.save(step, step % 2)
        for place in world.places:
            assert {read_record(place.ram_dir, name).save.step for name in names(place.ram_dir)} == {4, 5}
            assert len(list(place.ram_dir.glob("*.data"))) == 4

    run(test)


def test_a_shard_that_is_empty_is_saved_like_any_other(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            for worker in world.workers:
                worker.save(10, 0, b"")
            for worker in world.workers:
                await worker.event("committed", step=10)
        async with World(tmp_path, ["a", "b"], 1, config()) as world:
            assert (await world.plan())["step"] == 10
            assert await world.contents(2) == [b"", b""]

    run(test)


ONE, OF = layout(1).to_json(), LINE.to_json()
REFUSED = layout(5000).to_json() | {"chunks": [["x", "uint8", [5000], [], [5000], 0, 5000]]}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"op": "drop_shard", "descent": OF, "reason": "no slot in time"}, "rank 3: no slot in time"),
        (
            {"op": "staged", "slot": 0, "layout": REFUSED, "descent": OF},
            "the shard of rank 3 was refused: layout: bad chunk",
        ),
        ({"op": "staged", "slot": 0}, "the shard of rank 3 was refused: malformed 'staged': layout is missing"),
        ({"op": "staged", "slot": 0, "layout": ONE}, "the shard of rank 3 was refused: malformed 'staged': descent is"),
        (
            {"op": "staged", "slot": 0, "layout": ONE, "descent": OF | {"id": "x"}},
            "refused: line: malformed number, id or",
        ),
        ({"op": "staged", "slot": 9, "layout": ONE, "descent": OF}, "refused: staged: slot 9 of rank 3 is not"),
    ],
)
def test_a_rank_that_cannot_save_makes_all_drop_the_step_at_once(tmp_path, message, reason):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(), ranks_per_node=2) as world:
            for worker in world.workers[:3]:
                worker.save(10, 0)
            world.workers[3].send(step=10, rank=3, **message)
            for worker in world.workers:
                assert reason in (await worker.event("dropped", step=10))["reason"]
            problem = await world.monitors[0].event("problem", step=10)
            assert "node b: " in problem["detail"] and reason in problem["detail"]
            await world.await_saves()
            await world.save(20, 1)

    run(test)


def test_a_flush_is_answered_when_the_worker_has_been_told_of_a_drop_and_not_before(tmp_path):
    """Else a rank goes on as if the save had come about: and stores tensors by halves that another stores whole."""
    over = asyncio.Event()

    async def slow_to_end():
        try:
            await asyncio.Event().wait()
        finally:
            await over.wait()

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            saves, worker = world.agents[0]._saving, world.workers[0]
            worker.save(10, 0)
            await until(lambda: 10 in saves._in_flight)
            slow = saves._in_flight[10].tasks.hold(slow_to_end())
            world.workers[1].send(op="drop_shard", step=10, rank=1, descent=OF, reason="no memory")
            await until(lambda: 10 not in saves._in_flight)
            flush = asyncio.ensure_future(worker.request("await_saves"))
            await worker.request("nonsense")  # the one before has been looked at by now
            assert not slow.done() and not flush.done()
            over.set()
            await flush
            assert worker.seen("dropped")

    run(test)


def test_a_rank_that_comes_late_with_a_dropped_step_is_told(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            world.workers[0].send(op="drop_shard", step=10, rank=0, descent=OF, reason="no memory")
            await world.workers[0].event("dropped", step=10)
            await until(lambda: world.monitors[0].seen("problem"))
            world.workers[1].save(10, 0)
            await world.workers[1].event("dropped", step=10)
            await world.await_saves()

    run(test)


def test_a_newer_complete_step_drops_an_older_incomplete_one(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            world.workers[0].save(10, 0)
            await until(lambda: world.has_sealed(0, 10))
            await world.save(20, 1)
            assert "step 20" in (await world.workers[0].event("dropped", step=10))["reason"]
            await world.await_saves()

    run(test)


def test_steps_saved_in_quick_succession_all_commit_in_order(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            for step, slot in ((10, 0), (20, 1)):
                for worker in world.workers:
                    worker.save(step, slot, b"x" * (50_000_000 if step == 10 else 10))
            for worker in world.workers:
                await worker.event("committed", step=20)
                assert [event["step"] for event in worker.seen("committed")] == [10, 20]

    run(test)


@pytest.mark.parametrize(("ranks_per_node", "missing"), [(1, "node b"), (2, "local rank 1")])
def test_a_step_that_not_all_seal_in_time_is_dropped_naming_who_was_waited_for(tmp_path, ranks_per_node, missing):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(), ranks_per_node, QUICK) as world:
            world.workers[0].save(10, 0)
            assert missing in (await world.workers[0].event("dropped", step=10))["reason"]
            await world.await_saves()

    run(test)


def test_a_lost_node_drops_the_save_naming_it_and_the_next_save_still_works_elsewhere(tmp_path):
    async def test():
        async with World(
            tmp_path, ["a", "b", "c"], 0, config(), deadlines=AgentDeadlines(answer_s=2, protect_s=2)
        ) as world:
            await world.save(10, 0)
            for worker in world.workers:
                worker.stage(20, 1)
            world.workers[1].save(20, 1)
            world.workers[2].save(20, 1)
            await until(lambda: world.has_reported(1, 20) and world.has_reported(2, 20))
            world.fake.dead.add(2)
            world.workers[0].save(20, 1)
            dropped = await world.workers[0].event("dropped", step=20)
            assert "node c" in dropped["reason"]
            await world.monitors[0].event("problem", step=20)

    run(test)


def test_when_the_transport_fails_unpromised_saves_are_dropped_and_workers_are_still_served(tmp_path):
    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
            world.workers[1].save(20, 1)
            await until(lambda: world.has_sealed(1, 20))
            for transport in world.fake.transports:
                transport.fail = "MPI_ERR_PROC_FAILED"
            await world.workers[1].event("dropped", step=20)
            for monitor in world.monitors:
                await monitor.event("problem", what="the other agents are lost")
            await world.workers[1].request("await_saves")
            world.workers[1].save(30, 1)
            await world.workers[1].event("dropped", step=30)

    run(test)


def test_when_the_transport_fails_a_promised_save_stays_and_nobody_waits_for_it(tmp_path):
    """The coordinator may have committed it elsewhere: its slot must not be given away."""

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            protect = world.agents[1]._saving._on_protect

            async def promise_then_lose_the_world(source, save):
                await protect(source, save)
                for transport in world.fake.transports:
                    transport.fail = "MPI_ERR_PROC_FAILED"

            world.agents[1]._peers._handlers["protect"] = promise_then_lose_the_world
            for worker in world.workers:
                worker.save(10, 0)
            await world.monitors[1].event("problem", what="the other agents are lost")
            await world.workers[1].request("await_saves")
            assert not world.workers[1].seen("dropped") and not world.workers[1].seen("committed")
            assert "own-0-0" in names(world.places[1].ram_dir)

    run(test)


def test_full_memory_on_the_partner_drops_the_save_and_later_saves_work(tmp_path, monkeypatch):
    allocate = os.posix_fallocate
    full = [True]

    def fallocate(descriptor: int, start: int, nbytes: int) -> None:
        if full[0] and "copy-" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(descriptor, start, nbytes)

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            monkeypatch.setattr(os, "posix_fallocate", fallocate)
            for worker in world.workers:
                worker.save(10, 0)
            for worker in world.workers:
                assert "No space left" in (await worker.event("dropped", step=10))["reason"]
            full[0] = False
            await world.save(20, 1)

    run(test)


def test_a_slot_shorter_than_its_layout_drops_the_save(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            worker = world.workers[0]
            worker.stage(10, 0, b"short")
            worker.send(op="staged", slot=0, step=10, rank=0, layout=layout(100).to_json(), descent=OF, flush=False)
            assert "expected at least 100" in (await worker.event("dropped", step=10))["reason"]

    run(test)


def test_saving_a_step_twice_drops_the_second(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            await world.save(10, 0)
            world.workers[0].save(10, 1)
            await world.workers[0].event("dropped", step=10)
            await world.await_saves()

    run(test)


MALFORMED = [
    {"op": "staged"},
    {"op": "staged", "slot": 0, "step": -1, "rank": 0, "layout": ONE, "descent": OF},
    {"op": "staged", "slot": 9, "step": 1, "rank": 0, "layout": ONE, "descent": OF},
    {"op": "staged", "slot": 0, "step": 1, "rank": 5, "layout": ONE, "descent": OF},
    {"op": "staged", "slot": 0, "step": 1, "rank": 0, "layout": {"nbytes": 1}, "descent": OF},
    {"op": "staged", "slot": 0, "step": 1, "rank": 0, "layout": ONE, "descent": {"number": 1}},
    {"op": "drop_shard", "step": "x", "rank": 0, "descent": OF, "reason": ""},
    {"op": "drop_shard", "step": 1, "rank": 0, "descent": {"number": 1}, "reason": ""},
    {"op": "damaged", "rank": None, "path": "x"},
    {"op": "open", "rank": 0, "blocks": None},
    {"op": "open", "rank": "x", "blocks": None},
    {"op": "open"},
    {"op": "nonsense"},
    {"op": None},
]


@pytest.mark.parametrize("message", MALFORMED, ids=str)
def test_a_malformed_message_is_answered_with_an_error_and_harms_nothing(tmp_path, message):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            message_with_id = {"id": "m", **message}
            world.workers[0].send(**message_with_id)
            assert "error" in await world.workers[0].wait_for(lambda m: m.get("re") == "m")
            world.workers[0].send(**message)
            await world.monitors[0].event("problem")
            await world.save(10, 0)

    run(test)


def test_what_is_no_frame_closes_only_its_own_connection(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            for garbage in (b"\xff\xff\xff\xff", b"\0\0\0\2[]", b"\0\0\0\x0c" + b'{"op":"bye"}'):
                link = Link()
                await link.open(world.places[0].socket_path, {"role": "worker", "local_rank": 0})
                if garbage.endswith(b"}"):  # anything before hello
                    await link.close()
                    link.send = lambda **_: None  # type: ignore[method-assign]
                    await link.open(world.places[0].socket_path, {})
                link._writer.write(garbage)
                await until(lambda link=link: link.closed)
                await link.close()
            await world.save(10, 0)

    run(test)


def test_events_wait_for_the_first_monitor(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            await world.monitors[0].close()
            await world.save(10, 0)
            late = Link()
            await late.open(world.places[0].socket_path, {"role": "monitor"})
            await late.event("commit", step=10)
            await late.close()

    run(test)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_by_his_credentials(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            path = world.places[0].socket_path
            path.chmod(0o777)  # even where the file modes would let him in
            for folder in path.parents:
                if folder.stat().st_mode & 0o005 != 0o005:
                    folder.chmod(0o755)
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    os.setuid(65534)
                    stream = socket.socket(socket.AF_UNIX)
                    stream.settimeout(10)
                    stream.connect(str(path))
                    body = b'{"op":"hello","role":"monitor"}'
                    try:
                        stream.sendall(struct.pack(">I", len(body)) + body)
                        answer = stream.recv(10)
                    except OSError:
                        answer = b""
                    os.write(writer, b"refused" if answer == b"" else b"served")
                except BaseException as error:
                    os.write(writer, repr(error).encode())
                finally:
                    os._exit(0)
            os.close(writer)
            os.set_blocking(reader, False)
            said = []

            def answered() -> bool:
                try:
                    said.append(os.read(reader, 200))
                except BlockingIOError:
                    return False
                return True

            await until(answered)
            os.waitpid(child, 0)
            os.close(reader)
            assert said == [b"refused"]
            await world.save(10, 0)

    run(test)


def test_the_socket_is_private(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            assert world.places[0].socket_path.stat().st_mode & 0o777 == 0o600
        assert not world.places[0].socket_path.exists()

    run(test)


def test_a_memory_directory_has_one_agent_at_a_time(tmp_path):
    tmp_path.chmod(0o700)
    first = MemoryDirectory(tmp_path, 1)
    with pytest.raises(AgentError, match="in use by another agent"):
        MemoryDirectory(tmp_path, 0.1)
    first.close()
    MemoryDirectory(tmp_path, 1).close()


def test_a_memory_directory_that_is_not_ours_alone_is_refused(tmp_path):
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match="mode 755"):
        MemoryDirectory(tmp_path, 1)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="expected a directory"):
        MemoryDirectory(link, 1)


def test_a_free_name_never_replaces_what_must_stay(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            await world.save(10, 0)
            await world.save(20, 1)
        memory_store = MemoryStore(world.places[0].ram_dir, "run-1", "test")
        memory_store.scan()
        saves = {step: next(r.save for r in memory_store.shards().values() if r.save.step == step) for step in (10, 20)}
        assert memory_store.free_name("own-0", 2, keep=None) == "own-0-2"
        assert memory_store.free_name("own-0", 2, keep={saves[20]}) == "own-0-0"
        assert memory_store.free_name("own-0", 2, keep=set(saves.values())) == "own-0-2"
        assert memory_store.free_name("copy-1-0", 2, keep=set()) == "copy-1-0-0"

    run(test)


def test_a_damaged_record_is_no_shard(tmp_path):
    async def test():
        async with World(tmp_path, ["a"], 0, config()) as world:
            await world.save(10, 0)
        ram_dir = world.places[0].ram_dir
        record = ram_dir / "own-0-0.json"
        record.write_bytes(record.read_bytes()[:-40])
        with pytest.raises(CorruptError):
            read_record(ram_dir, "own-0-0")
        memory_store = MemoryStore(ram_dir, "run-1", "test")
        memory_store.scan()
        assert memory_store.shards() == {} and not record.exists()

    run(test)


def test_calls_name_every_node_that_failed(tmp_path):
    async def test():
        deadlines = replace(DEADLINES, answer_s=0.1)
        async with World(tmp_path, ["a", "b", "c"], 0, config(), deadlines=deadlines) as world:
            peers = world.agents[0]._peers
            with pytest.raises(PeerError, match=r"node a: nonsense: unknown call; node b: .*; node c: "):
                await peers.call_all("nonsense", timeout_s=5)
            world.fake.dead |= {1, 2}
            with pytest.raises(PeerError, match=r"node b: no answer to 'inventory' within 0\.1 s; node c: no answer"):
                await peers.call_all("inventory")

    run(test)


def test_a_source_that_falls_silent_is_named(tmp_path):
    async def promises_bytes_and_sends_none(source, **fields):
        return {}

    async def test():
        async with World(tmp_path, ["a", "b"], 0, config(), deadlines=replace(DEADLINES, stall_s=0.1)) as world:
            world.agents[1]._peers._handlers["shard_bytes"] = promises_bytes_and_sends_none
            for worker in world.workers:
                worker.save(10, 0)
            assert "node b: no bytes moved for 0.1 s" in (await world.workers[0].event("dropped", step=10))["reason"]
            assert names(world.places[0].ram_dir) == {"own-0-0"}
            assert not list(world.places[0].ram_dir.glob("copy-*"))  # late bytes must find no file to land in

    run(test)


def test_a_socket_path_that_is_too_long_says_so(tmp_path):
    async def test():
        folder = tmp_path / ("x" * 100)
        folder.mkdir()
        with pytest.raises(AgentError, match="at most 107; use a shorter memory directory"):
            await WorkerSocket(folder / "agent-0.sock", serve=lambda *_: None).listen()

    run(test)
