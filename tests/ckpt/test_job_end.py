"""After a job's end its newest whole step goes from the nodes' memories to the tiers that ask, without any agent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from agent_kit import LINE, NAMESPACE, RUN_ID, World, config, content, lose, run, save_id
from parity_kit import saved
from s3_kit import s3_server
from test_recover import damage
from verb_kit import ckpt
from waiting import until

from ckpt.config import CheckpointConfig, Place
from ckpt.epilog import flush as flushing
from ckpt.epilog.flush import EpilogFlush, FlushSuperseded
from ckpt.epilog.request import NAME, leave_request, read_request
from ckpt.errors import CheckpointError, ConfigError, CorruptError
from ckpt.format.line import NOBODY
from ckpt.format.manifest import NAME as MANIFEST
from ckpt.format.shard_record import SaveId
from ckpt.tiers.open import lower_tiers
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.reads import read_whole, reader
from ckpt.timeouts import EpilogDeadlines

NODES = ("a", "b", "c")
WORLD = 6
WAIT_S = 60.0


def asking(root: Path, scheme: str = "partner", **more: object) -> CheckpointConfig:
    """Memory alone while the job lives; the shared directory when it has ended."""
    given = config(root / "shared", scheme, every_steps=100_000, **more)
    return replace(given, shared=replace(given.shared, on_job_end=True))


def ask(root: Path, checkpoint: CheckpointConfig, *nodes: str, attempt: int = 0) -> None:
    """What the nodes' agents leave when they start."""
    for node in nodes or NODES:
        place = Place(run_id=RUN_ID, attempt=attempt, node=node, nodes=NODES, ranks_per_node=2, ram_dir=root / node)
        leave_request(place, checkpoint, {**os.environ, "HOLDFAST_LOG_DIR": str(root / "log")})


def after(root: Path, checkpoint: CheckpointConfig, **how: object) -> None:
    """A run has saved steps 10 and 20 in memory and was killed."""
    run(lambda: saved(root, checkpoint, nodes=NODES, **how))
    ask(root, checkpoint)


def programs(root: Path, *nodes: str, within_s: float = WAIT_S) -> list[subprocess.Popen[bytes]]:
    """As the epilogs of these nodes start them."""
    argv = [sys.executable, "-I", "-m", "ckpt.epilog"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return [subprocess.Popen([*argv, str(root / node), "--within", str(within_s)], env=env) for node in nodes]


def flush(root: Path, *nodes: str, within_s: float = WAIT_S) -> dict[str, SaveId | CheckpointError | None]:
    """All nodes' parts side by side, in this process; what each came to."""
    found: dict[str, SaveId | CheckpointError | None] = {}

    def one(node: str) -> None:
        request = read_request(root / node)
        tier = lower_tiers(request.config, node=None)["shared"]
        try:
            found[node] = EpilogFlush(root / node, request, tier).run(time.monotonic() + within_s)
        except CheckpointError as error:
            found[node] = error

    threads = [threading.Thread(target=one, args=(node,)) for node in nodes or NODES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return found


def tier(root: Path) -> SharedTier:
    return SharedTier(root / "shared", NAMESPACE)


def check(root: Path, step: int, data: Callable[[int, int], bytes] = content) -> None:
    """The shared directory offers that step, every byte of it as it was saved."""
    place, (save, *_) = tier(root), tier(root).steps()
    assert save.step == step
    shards = place.read_manifest(save).shards
    assert [entry.rank for entry in shards] == list(range(WORLD))
    for entry in shards:
        got = memoryview(bytearray(entry.record.nbytes))
        read_whole(reader(place, save, entry), entry, got)
        assert got == data(entry.rank, step)


def log_of(root: Path) -> str:
    return "".join(path.read_text() for path in (root / "log").glob("*"))


def overwrite(root: Path, node: str, step: int) -> None:
    """The shards of a step that a node holds are gone, as when its slots were used again."""
    for record in (root / node).glob("*-*.json"):
        if json.loads(record.read_bytes().partition(b"\n")[0]).get("step") == step:
            record.unlink()


def test_the_newest_step_is_committed_and_the_next_run_restores_it(tmp_path: Path) -> None:
    after(tmp_path, asking(tmp_path))
    working = programs(tmp_path, *NODES)
    assert [process.wait(WAIT_S) for process in working] == [0, 0, 0]
    check(tmp_path, 20)
    assert "step 20 was only in memory: committed in" in log_of(tmp_path)
    assert ckpt("verify", str(tmp_path / "shared")).exit_code == 0
    lose(tmp_path, *NODES)

    async def next_run() -> None:
        async with World(tmp_path, ["d", "e", "f"], 1, asking(tmp_path), ranks_per_node=2) as world:
            plan = await world.plan()
            assert (plan["step"], plan["tier"]) == (20, "shared")
            assert await world.contents(WORLD) == [content(rank, 20) for rank in range(WORLD)]

    run(next_run)


def test_a_second_time_there_is_nothing_to_do(tmp_path: Path) -> None:
    after(tmp_path, asking(tmp_path))
    flush(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "shared").rglob("*")}
    assert set(flush(tmp_path).values()) == {None}
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "shared").rglob("*")} == before


def test_a_step_that_not_all_have_gives_way_to_the_one_before(tmp_path: Path) -> None:
    after(tmp_path, asking(tmp_path, "none"))
    overwrite(tmp_path, "b", 20)
    assert {save.step for save in flush(tmp_path).values()} == {10}
    check(tmp_path, 10)


def test_what_a_lost_node_held_comes_from_its_partners(tmp_path: Path) -> None:
    after(tmp_path, asking(tmp_path))
    lose(tmp_path, "b")
    assert {save.step for save in flush(tmp_path, "a", "c").values()} == {20}
    check(tmp_path, 20)


def test_after_a_script_has_gone_back_its_newest_step_is_committed_not_the_largest(tmp_path: Path) -> None:
    checkpoint, back = asking(tmp_path), LINE.fork(10, number=2, began_s=0.0, seed="back", owner=NOBODY)

    async def job() -> None:
        async with World(tmp_path, list(NODES), 0, checkpoint, ranks_per_node=2) as world:
            for slot, step in enumerate((10, 20)):
                await world.save(step, slot)
            await world.save(15, 0, line=back)

    run(job)
    ask(tmp_path, checkpoint)
    assert set(flush(tmp_path).values()) == {save_id(15, 0, back)}
    check(tmp_path, 15)


def test_what_only_parity_could_make_again_stays_where_it_is_and_is_told(tmp_path: Path, caplog) -> None:
    after(tmp_path, asking(tmp_path, "xor"))
    lose(tmp_path, "b")
    assert set(flush(tmp_path, "a", "c", within_s=0).values()) == {None}
    assert tier(tmp_path).steps() == []
    assert "no node has listed rank 2 and 1 more. Parity is not used here" in caplog.text
    left = [tmp_path / "a", tmp_path / "c"]
    assert ckpt("rebuild", *map(str, left), "--into", str(left[0])).exit_code == 0
    assert {save.step for save in flush(tmp_path, "a", "c").values()} == {20}  # what was made again counts as a copy
    check(tmp_path, 20)


def test_a_damaged_shard_comes_from_its_copy(tmp_path: Path) -> None:
    after(tmp_path, asking(tmp_path))
    newest = [p for p in (tmp_path / "a").glob("own-0-*.json") if b'"step":20' in p.read_bytes()]
    damage(newest[0].with_suffix(".data"))
    found = flush(tmp_path)
    assert {getattr(save, "step", None) for save in found.values()} == {20}, found
    check(tmp_path, 20)


def test_a_node_that_comes_late_with_the_copy_is_waited_for(tmp_path: Path) -> None:
    """The others alone could make the step before whole."""
    after(tmp_path, asking(tmp_path))
    newest = [p for p in (tmp_path / "a").glob("own-0-*.json") if b'"step":20' in p.read_bytes()]
    damage(newest[0].with_suffix(".data"))
    with ThreadPoolExecutor() as threads:
        others = threads.submit(flush, tmp_path, "a", "c")
        older = save_id(10)
        until(lambda: {name.rpartition(".")[2] for name in tier(tmp_path).notes(older)} >= {"a", "c"})
        assert flush(tmp_path, "b")["b"].step == 20
        assert {save.step for save in others.result().values()} == {20}
    check(tmp_path, 20)


def test_a_node_that_dies_after_it_has_named_its_shards_is_stepped_in_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flushing, "DEADLINES", EpilogDeadlines(write_turn_s=0.0, commit_turn_s=0.0))
    after(tmp_path, asking(tmp_path))
    request = read_request(tmp_path / "a")
    gone = EpilogFlush(tmp_path / "a", request, tier(tmp_path))
    gone._tier.prepare()
    assert gone._name(max(gone._left))
    assert {save.step for save in flush(tmp_path, "b", "c").values()} == {20}
    check(tmp_path, 20)


class Dies(BaseException):
    """The process is killed."""


class Mortal:
    """A method after whose n-th call, or before it, the process dies."""

    def __init__(self, method: Callable[..., object], number: int, moment: str) -> None:
        self._method, self._left, self._moment = method, number, moment

    def __call__(self, *args: object) -> object:
        self._left -= 1
        if self._left == 0 and self._moment == "before":
            raise Dies
        done = self._method(*args)
        if self._left == 0:
            raise Dies
        return done


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("call", ["begin", "leave_note", "write_rank", "commit"])
def test_killed_anywhere_nothing_is_half_committed_and_a_second_start_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, moment: str
) -> None:
    """At the first, second, ... of these calls, as long as there is one more."""
    after(tmp_path, asking(tmp_path, "none"))
    for number in range(1, 100):
        shutil.rmtree(tmp_path / "shared")
        names, then_writes = ("a", "b", "c"), ("b",)  # one by one: c is the last to name, and writes at once
        for node in (*names, *then_writes) if call == "commit" else ("b", "c"):
            flush(tmp_path, node, within_s=0)
        mortal = tier(tmp_path)
        monkeypatch.setattr(mortal, call, Mortal(getattr(mortal, call), number, moment))
        try:
            EpilogFlush(tmp_path / "a", read_request(tmp_path / "a"), mortal).run(time.monotonic())
        except Dies:
            entries = list(tier(tmp_path).catalog())
            assert not any(entry.damaged for entry in entries)
            committed = [20] if (call, moment) == ("commit", "after") else []
            assert [entry.step for entry in entries if entry.save] == committed
            flush(tmp_path)
            check(tmp_path, 20)
        else:
            break
    assert number > 1


def test_killed_while_it_writes(tmp_path: Path) -> None:
    slow = asking(tmp_path, "none")
    slow = replace(slow, shared=replace(slow.shared, rate_limit_bytes_s=1 << 20))
    size = 32 << 20
    after(tmp_path, slow, steps=(20,), data=lambda rank, step: content(rank, step, size if rank == 0 else 5000))
    (first,) = programs(tmp_path, "a")
    others = programs(tmp_path, "b", "c")
    try:
        until(lambda: list((tmp_path / "shared").rglob(".rank-00000.data.*.tmp")), "the first shard's file")
        assert first.poll() is None
        first.kill()
        first.wait()
        assert tier(tmp_path).steps() == []
        ask(tmp_path, replace(slow, shared=replace(slow.shared, rate_limit_bytes_s=None)), "a")
        again = programs(tmp_path, "a")
        assert [process.wait(WAIT_S) for process in (*again, *others)] == [0, 0, 0]
    finally:
        for process in (first, *others):
            process.kill()
            process.wait()
    check(tmp_path, 20, lambda rank, step: content(rank, step, size if rank == 0 else 5000))


@pytest.mark.parametrize("change", [{"run_id": "another"}, {"attempt": 1}], ids=["another run", "a later attempt"])
def test_nothing_goes_where_the_run_is_back_or_another_has_taken_over(
    tmp_path: Path, change: dict[str, object]
) -> None:
    after(tmp_path, asking(tmp_path))
    place = tier(tmp_path)
    place.write_claim(replace(place.read_claim(), released=False, **change))
    assert {type(found) for found in flush(tmp_path).values()} == {FlushSuperseded}
    assert list(place.catalog()) == []


def test_a_shard_that_is_overwritten_while_it_is_written_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after(tmp_path, asking(tmp_path, "none"))
    write_rank = SharedTier.write_rank

    def job_is_back(self: SharedTier, save: SaveId, record: object, data: memoryview) -> object:
        overwrite(tmp_path, "a", 20)  # a worker removes the record, then overwrites the bytes
        return write_rank(self, save, record, data)

    with monkeypatch.context() as patch:
        patch.setattr(SharedTier, "write_rank", job_is_back)
        flush(tmp_path, "b", "c", within_s=0)
        assert isinstance(flush(tmp_path, "a")["a"], FlushSuperseded)
    directory = next((tmp_path / "shared").rglob("step-*20.*"))
    assert not (directory / "rank-00000.json").exists() and not (directory / MANIFEST).exists()


def test_two_on_one_node_do_not_meet(tmp_path: Path) -> None:
    after(tmp_path, asking(tmp_path, "none"))
    (first,) = programs(tmp_path, "a")  # it waits for the others
    try:
        until(lambda: list((tmp_path / "shared").rglob("own-*.a")), "the first's names")
        (second,) = programs(tmp_path, "a")
        assert second.wait(WAIT_S) == 0 and first.poll() is None
    finally:
        first.kill()
        first.wait()


class TestRequest:
    def test_it_says_what_the_job_file_said_and_no_secret(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir(mode=0o700)
        env = {"AWS_PROFILE": "p", "AWS_SECRET_ACCESS_KEY": "secret", "HOME": "/h"}
        place = Place(run_id=RUN_ID, attempt=3, node="a", nodes=NODES, ranks_per_node=2, ram_dir=tmp_path / "a")
        leave_request(place, asking(tmp_path), env)
        request = read_request(tmp_path / "a")
        assert (request.run_id, request.attempt, request.node, request.nodes) == (RUN_ID, 3, "a", 3)
        assert request.config == asking(tmp_path)
        assert request.environment == {"AWS_PROFILE": "p", "HOME": "/h"}
        assert b"secret" not in (tmp_path / "a" / NAME).read_bytes()
        assert (tmp_path / "a" / NAME).stat().st_mode & 0o777 == 0o600

    def test_it_is_taken_back_by_an_attempt_that_asks_for_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir(mode=0o700)
        ask(tmp_path, asking(tmp_path), "a")
        ask(tmp_path, config(tmp_path / "shared"), "a")
        with pytest.raises(FileNotFoundError):
            read_request(tmp_path / "a")

    def test_it_is_taken_back_by_a_node_that_leaves_while_the_job_goes_on(self, tmp_path: Path) -> None:
        (tmp_path / "c").mkdir(mode=0o700)
        ask(tmp_path, asking(tmp_path), "c")
        place = Place(
            run_id=RUN_ID, attempt=4, node="c", nodes=("a", "b"), holders=("c",), ranks_per_node=2,
            ram_dir=tmp_path / "c",
        )  # fmt: skip
        leave_request(place, asking(tmp_path), {})
        with pytest.raises(FileNotFoundError):
            read_request(tmp_path / "c")

    @pytest.mark.parametrize("kind", ["link", "pipe", "long", "garbage", "path", "other section", "variable"])
    def test_what_we_have_not_written_is_refused(self, tmp_path: Path, kind: str) -> None:
        (tmp_path / "a").mkdir(mode=0o700)
        ask(tmp_path, asking(tmp_path), "a")
        path = tmp_path / "a" / NAME
        value = json.loads(path.read_text())
        changes = {"path": {"node": "../x"}, "other section": {"checkpoint": {"names": "x"}}}
        if kind == "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        elif kind == "pipe":
            path.unlink()
            os.mkfifo(path)
        elif kind == "variable":
            path.write_text(json.dumps(value | {"environment": {"LD_PRELOAD": "/x", "HOME": "/h"}}))
            assert read_request(tmp_path / "a").environment == {"HOME": "/h"}
            return
        else:
            text = {"long": " " * (5 << 20), "garbage": "{"}.get(kind)
            path.write_text(text if text else json.dumps(value | changes[kind]))
        with pytest.raises((CorruptError, ConfigError)):
            read_request(tmp_path / "a")


@contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def test_a_bucket_and_a_directory_side_by_side_and_one_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    with s3_server(tmp_path / "s3") as server:
        given = asking(tmp_path, s3=server.section())
        given = replace(given, s3=replace(given.s3, on_job_end=True, every_steps=100_000))
        after(tmp_path, given, steps=(10,))
        keys = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"), "HOLDFAST_LOG_DIR": str(tmp_path / "log")}
        (tmp_path / "keys").write_text(
            f"[default]\naws_access_key_id={os.environ['AWS_ACCESS_KEY_ID']}\n"
            f"aws_secret_access_key={os.environ['AWS_SECRET_ACCESS_KEY']}\n"
        )
        for node in NODES:
            place = Place(run_id=RUN_ID, attempt=0, node=node, nodes=NODES, ranks_per_node=2, ram_dir=tmp_path / node)
            leave_request(place, given, keys)
        with stopped(server._process):
            working = programs(tmp_path, *NODES, within_s=8)
            assert [process.wait(WAIT_S) for process in working] == [0, 0, 0]
            check(tmp_path, 10)
        assert "the s3 tier did not answer in time" in log_of(tmp_path)
        working = programs(tmp_path, *NODES)
        assert [process.wait(WAIT_S) for process in working] == [0, 0, 0]
        bucket = lower_tiers(given, node=None)["s3"]
        assert [save.step for save in bucket.steps()] == [10]
        assert len(bucket.read_manifest(bucket.steps()[0]).shards) == WORLD
