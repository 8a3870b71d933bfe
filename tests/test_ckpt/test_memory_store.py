"""What a memory directory is taken to hold while workers write beside it."""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from agent_kit import NAMESPACE, RUN_ID, World, config, content, layout, run
from waiting import until

from ckpt.agent.shards import memory_store
from ckpt.agent.shards.memory_store import MemoryStore
from ckpt.format.checksums import checksums
from ckpt.format.shard_record import SaveId, ShardRecord


def put(held: MemoryStore, name: str, step: int) -> ShardRecord:
    """A shard of rank 0, published."""
    data = content(0, step)
    held.room_for(name, len(data))(0, len(data))[:] = data
    save = SaveId(step=step, attempt=0, run_id=RUN_ID)
    record = ShardRecord(
        save=save, namespace=NAMESPACE, rank=0, world_size=1, layout=layout(len(data)),
        blocks=checksums(memoryview(data)),
    )  # fmt: skip
    held.publish(name, record)
    return record


def opened(ram_dir: Path) -> MemoryStore:
    """As an agent finds them that has just started: nothing is verified."""
    held = MemoryStore(ram_dir, RUN_ID, NAMESPACE)
    held.scan()
    return held


@pytest.mark.parametrize("torn", [False, True])
def test_a_slot_that_is_saved_into_while_it_is_verified_neither_counts_nor_is_the_new_shard_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    """Be it that the bytes read were the old ones, or old and new mixed."""
    old = put(MemoryStore(tmp_path, RUN_ID, NAMESPACE), "own-0-0", 10)
    held = opened(tmp_path)

    def overwritten(data: memoryview, blocks: Sequence[str]) -> list[int]:
        put(held, "own-0-0", 20)
        return [0] if torn else []

    monkeypatch.setattr(memory_store, "damaged_blocks", overwritten)
    assert not asyncio.run(held.verify("own-0-0"))
    assert held.record("own-0-0").save.step == 20
    assert held.find(old.save, 0) == []


def test_of_several_shards_the_one_that_was_verified_comes_first(tmp_path: Path) -> None:
    """It is what others are served; else this node's own before copies."""
    before = MemoryStore(tmp_path, RUN_ID, NAMESPACE)
    for name in ("copy-1-0-0", "own-0-0"):
        save = put(before, name, 10).save
    held = opened(tmp_path)
    assert held.find(save, 0) == ["own-0-0", "copy-1-0-0"]
    assert asyncio.run(held.verify("copy-1-0-0"))
    assert held.find(save, 0) == ["copy-1-0-0", "own-0-0"]


def test_a_slot_whose_file_was_replaced_is_mapped_anew(tmp_path: Path) -> None:
    held = MemoryStore(tmp_path, RUN_ID, NAMESPACE)
    record = put(held, "own-0-0", 10)
    (tmp_path / "new").write_bytes(content(0, 20))
    (tmp_path / "new").replace(tmp_path / "own-0-0.data")
    assert bytes(held.bytes_of("own-0-0", record.nbytes)) == content(0, 20)


def test_what_a_killed_process_left_half_made_goes(tmp_path: Path) -> None:
    put(MemoryStore(tmp_path, RUN_ID, NAMESPACE), "own-0-0", 10)
    kept = {path.name for path in tmp_path.iterdir()}
    for name in ("fetch-0-1.data", ".own-0-0.json.1234.tmp"):
        (tmp_path / name).touch()
    opened(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_room_is_all_there_whatever_the_file_was_before(tmp_path: Path) -> None:
    """A file as long as is needed may have holes: what writes into them where memory is full gets a SIGBUS."""
    nbytes, path = 1 << 20, tmp_path / "copy-1-0-0.data"
    for before in (0, nbytes // 2, nbytes, 2 * nbytes):
        path.unlink(missing_ok=True)
        path.touch()
        os.truncate(path, before)
        MemoryStore(tmp_path, RUN_ID, NAMESPACE).room_for(path.stem, nbytes)
        assert path.stat().st_blocks * 512 >= nbytes


def test_memory_that_is_there_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel would look at each page, at every save."""
    asked, allocate = [], os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, start, n: asked.append(n) or allocate(fd, start, n))
    held = MemoryStore(tmp_path, RUN_ID, NAMESPACE)
    for nbytes in (8192, 8192, 4096, 12288):
        held.room_for("copy-1-0-0", nbytes)
    assert asked == [8192, 12288]


def test_new_memory_is_mapped_before_it_is_written_to(tmp_path: Path) -> None:
    nbytes = 8 << 20
    room = MemoryStore(tmp_path, RUN_ID, NAMESPACE).room_for("copy-1-0-0", nbytes)

    def mapped_kb() -> int:
        lines = iter(Path("/proc/self/smaps").read_text().splitlines())
        next(line for line in lines if line.endswith(str(tmp_path / "copy-1-0-0.data")))
        return int(next(line for line in lines if line.startswith("Rss:")).split()[1])

    until(lambda: mapped_kb() == nbytes >> 10, "its pages are mapped")
    assert not any(room(0, nbytes))


NOBODY = 65534


@pytest.fixture
def ram_dir() -> Iterator[Path]:
    """One that another user can be let into."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def forbidden(path: Path) -> Iterator[None]:
    """A file that we may not read; root, who may read all, is another user meanwhile."""
    os.chmod(path, 0)
    if is_root := os.geteuid() == 0:
        os.chown(path.parent, NOBODY, -1)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        if path.exists():
            os.chmod(path, 0o600)


@contextmanager
def covered(path: Path) -> Iterator[None]:
    """A directory in place of a file."""
    aside = path.rename(path.with_suffix(".aside"))
    path.mkdir()
    try:
        yield
    finally:
        path.rmdir()
        aside.rename(path)


@contextmanager
def out_of_descriptors(path: Path) -> Iterator[None]:
    """A process that may open no file."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("hidden", [forbidden, covered, out_of_descriptors])
def test_a_shard_whose_bytes_cannot_be_read_now_neither_counts_nor_is_lost(
    ram_dir: Path, caplog: pytest.LogCaptureFixture, hidden: Callable[[Path], AbstractContextManager[None]]
) -> None:
    save = put(MemoryStore(ram_dir, RUN_ID, NAMESPACE), "own-0-0", 10).save
    held = opened(ram_dir)

    async def test() -> None:
        with hidden(ram_dir / "own-0-0.data"):
            assert not await held.verify("own-0-0")
            assert not await held.verify_again("own-0-0")
            assert held.find(save, 0) == []
            for keep in (None, set()):
                assert held.free_name("own-0", slots=1, keep=keep) == "own-0-1"
        assert caplog.text.count("left out, and left as it is") == 1
        held.scan()
        assert held.find(save, 0) == ["own-0-0"]
        assert await held.verify("own-0-0")

    asyncio.run(test())


@pytest.mark.parametrize("hidden", [forbidden, covered])
def test_a_shard_whose_record_cannot_be_read_now_neither_counts_nor_is_lost(
    ram_dir: Path, caplog: pytest.LogCaptureFixture, hidden: Callable[[Path], AbstractContextManager[None]]
) -> None:
    held = MemoryStore(ram_dir, RUN_ID, NAMESPACE)
    save = put(held, "own-0-0", 10).save
    with hidden(ram_dir / "own-0-0.json"):
        for _ in range(2):
            held.scan()
            assert held.find(save, 0) == []
            assert held.free_name("own-0", slots=1, keep=set()) == "own-0-1"
    assert caplog.text.count("left out, and left as it is") == 1
    held.scan()
    assert held.find(save, 0) == ["own-0-0"]


def test_a_shard_that_could_not_be_read_makes_room_when_a_newer_save_has_committed(ram_dir: Path) -> None:
    put(MemoryStore(ram_dir, RUN_ID, NAMESPACE), "own-0-0", 10)
    with forbidden(ram_dir / "own-0-0.json"):
        held = opened(ram_dir)
        newer = put(held, "own-0-1", 20).save
        held.tidy({"own-0"}, 2, {newer})
        assert held.free_name("own-0", slots=2, keep={newer}) == "own-0-0"
    assert not (ram_dir / "own-0-0.json").exists()


@pytest.mark.parametrize("harm", [os.unlink, lambda path: os.truncate(path, 4999)], ids=["gone", "too short"])
def test_a_shard_whose_bytes_are_gone_for_good_is_dropped(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    put(MemoryStore(tmp_path, RUN_ID, NAMESPACE), "own-0-0", 10)
    held = opened(tmp_path)
    harm(tmp_path / "own-0-0.data")
    assert not asyncio.run(held.verify("own-0-0"))
    assert not (tmp_path / "own-0-0.json").exists()
    assert held.free_name("own-0", slots=1, keep=None) == "own-0-0"


def test_a_restore_takes_the_partners_copy_and_leaves_a_shard_as_it_is_that_cannot_be_read(tmp_path: Path) -> None:
    async def test() -> None:
        async with World(tmp_path, ["a", "b"], 0, config()) as world:
            await world.save(10, 0)
        record = (tmp_path / "a" / "own-0-0.json").read_bytes()
        with covered(tmp_path / "a" / "own-0-0.data"):
            async with World(tmp_path, ["a", "b"], 1, config()) as world:
                assert (await world.plan())["step"] == 10
                assert await world.contents(2) == [content(rank, 10) for rank in range(2)]
        assert (tmp_path / "a" / "own-0-0.json").read_bytes() == record

    run(test)
