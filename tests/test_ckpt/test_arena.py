"""Slots: which is free when, and what reserving memory promises."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckpt.format.layout import Layout
from ckpt.format.shard_record import SaveId, ShardRecord, read_record, write_record
from ckpt.memory import arena as arena_module
from ckpt.memory.arena import Arena, Slot


def publish(ram_dir: Path, name: str, step: int, attempt: int = 0, rank: int = 0) -> None:
    save = SaveId(step=step, attempt=attempt, run_id="run")
    layout = Layout(chunks=(), tree={}, nbytes=0)
    write_record(
        ram_dir, name, ShardRecord(save=save, namespace="ns", rank=rank, world_size=4, layout=layout, blocks=())
    )


def take(arena: Arena, step: int) -> Slot:
    slot = arena.take(step)
    assert slot is not None, arena.describe()
    return slot


def test_the_newest_committed_save_is_never_overwritten(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, 2)
    first, second = take(arena, 1), take(arena, 2)
    assert arena.take(3) is None
    arena.committed(1, pinned=False)
    assert arena.take(3) is None
    arena.committed(2, pinned=False)
    assert take(arena, 3) is first
    arena.dropped(3)
    assert take(arena, 4) is first
    assert second.step == 2


def test_a_slot_that_is_being_flushed_stays_until_that_is_over(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, 3)
    slots = [take(arena, step) for step in (1, 2, 3)]
    arena.committed(1, pinned=True)
    arena.committed(2, pinned=False)
    arena.committed(3, pinned=False)
    assert take(arena, 4) is slots[1]
    assert arena.take(5) is None
    arena.flushed(1)
    assert take(arena, 5) is slots[0]


def test_other_agents_know_of_one_save_alone_and_what_was_in_flight_is_given_up(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, 4)
    slots = [take(arena, step) for step in (1, 2, 3, 4)]
    for slot in slots[:3]:
        publish(tmp_path, slot.name, slot.step)
    arena.committed(1, pinned=True)
    arena.committed(2, pinned=False)
    newest = SaveId(step=3, attempt=0, run_id="run")  # sealed; that it counts as committed is news to us
    assert arena.rejoin(newest) == [4]
    assert {take(arena, step) for step in (5, 6, 7)} == {slots[0], slots[1], slots[3]}
    assert arena.take(8) is None and slots[2].step == 3
    arena.committed(6, pinned=False)
    assert take(arena, 8) is slots[2]


def test_other_agents_that_know_of_no_save_leave_what_was_committed(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, 2)
    first, second = take(arena, 1), take(arena, 2)
    arena.committed(1, pinned=True)
    assert arena.rejoin(None) == [2]
    assert take(arena, 3) is second and arena.take(4) is None and first.step == 1


def test_a_flush_that_ends_leaves_the_newest_save_in_place(tmp_path: Path) -> None:
    arena = Arena(tmp_path, 0, 2)
    take(arena, 1)
    arena.committed(1, pinned=True)
    arena.flushed(1)
    take(arena, 2)
    assert arena.take(3) is None


def test_what_the_restart_restores_is_kept_until_the_next_commit(tmp_path: Path) -> None:
    publish(tmp_path, "own-0-0", step=10, attempt=1)
    publish(tmp_path, "own-0-1", step=10, attempt=0)  # the same step of an older attempt is another save
    arena = Arena(tmp_path, 0, 2)
    arena.adopt(SaveId(step=10, attempt=1, run_id="run"))
    assert take(arena, 10).name == "own-0-1"
    assert arena.take(11) is None
    arena.committed(10, pinned=False)
    assert take(arena, 11).name == "own-0-0"


def test_what_was_restored_and_is_still_flushed_is_kept_beyond_the_next_commit(tmp_path: Path) -> None:
    publish(tmp_path, "own-0-0", step=10)
    arena = Arena(tmp_path, 0, 3)
    arena.adopt(SaveId(step=10, attempt=0, run_id="run"), pinned=True)
    take(arena, 11)
    arena.committed(11, pinned=False)
    take(arena, 12)
    assert arena.take(13) is None
    arena.flushed(10)
    assert take(arena, 13).name == "own-0-0"


def test_a_shard_of_another_rank_is_kept_as_well(tmp_path: Path) -> None:
    publish(tmp_path, "own-0-1", step=10, rank=3)
    arena = Arena(tmp_path, 0, 2)
    arena.adopt(SaveId(step=10, attempt=0, run_id="run"))
    assert take(arena, 11).name == "own-0-0"
    assert arena.take(12) is None


def test_the_oldest_free_slot_is_taken_first_and_unpublished(tmp_path: Path) -> None:
    publish(tmp_path, "own-0-0", step=10)
    publish(tmp_path, "own-0-1", step=8)
    (tmp_path / "own-0-2.json").write_text("damaged")
    arena = Arena(tmp_path, 0, 3)
    arena.adopt(None)
    assert [take(arena, step).name for step in (11, 12)] == ["own-0-2", "own-0-1"]
    assert not (tmp_path / "own-0-1.json").exists()
    assert read_record(tmp_path, "own-0-0").save.step == 10


def test_reserving_grows_a_slot_and_never_shrinks_it(tmp_path: Path) -> None:
    slot = Slot(tmp_path, 0, 0)
    small = slot.reserve(10)
    small[:3] = b"abc"
    assert slot.reserve(5) is small
    large = slot.reserve(100_000)
    assert large[:3] == small[:3] == b"abc"
    assert slot.reserve(1) is large
    assert slot.path.stat().st_size == 100_000 and slot.path.stat().st_mode & 0o777 == 0o600
    assert len(Slot(tmp_path, 0, 0).reserve(1)) == 100_000


def test_a_slot_mapped_ahead_is_read_where_it_is_and_not_mapped_again(tmp_path: Path) -> None:
    memory = Slot(tmp_path, 0, 0).reserve(100_000)
    memory[:5] = b"bytes"
    arena = Arena(tmp_path, 0, 2)  # of a later process; the second slot was never made
    arena.map_ahead()
    found = arena.mapped(str(tmp_path / "own-0-0.data"), 5)
    assert found == b"bytes"
    assert arena.slots[0].reserve(100_000) is found.obj
    assert arena.mapped(str(tmp_path / "own-0-0.data"), 100_001) is None
    assert arena.mapped(str(tmp_path / "own-0-1.data"), 1) is None
    assert not (tmp_path / "own-0-1.data").exists()


def test_the_shard_sealed_last_is_mapped_before_the_load_and_the_others_after_it(tmp_path: Path) -> None:
    files = []
    for slot, sealed_s in ((0, 20), (1, 30), (2, 10)):
        Slot(tmp_path, 0, slot).reserve(100_000)
        publish(tmp_path, f"own-0-{slot}", step=slot)
        os.utime(tmp_path / f"own-0-{slot}.json", (sealed_s, sealed_s))
        files.append(str(tmp_path / f"own-0-{slot}.data"))
    (tmp_path / "own-0-2.json").unlink()  # a slot without a shard
    arena = Arena(tmp_path, 0, 4)
    arena.map_newest()
    assert [arena.mapped(file, 100_000) is not None for file in files] == [False, True, False]
    newest = arena.slots[1].memory
    arena.map_ahead()
    assert all(arena.mapped(file, 100_000) is not None for file in files)
    assert arena.slots[1].memory is newest
    assert not arena.slots[3].path.exists()


def test_a_slot_can_be_read_while_its_pages_are_still_being_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Slot(tmp_path, 0, 0).reserve(100_000)[:5] = b"bytes"
    mapping, may_end = threading.Event(), threading.Event()

    def slow(memory: object) -> None:
        mapping.set()
        assert may_end.wait(60)

    monkeypatch.setattr(arena_module, "populate_for_writing", slow)
    arena = Arena(tmp_path, 0, 1)
    ahead = threading.Thread(target=arena.map_newest)
    ahead.start()
    try:
        assert mapping.wait(60)
        assert arena.mapped(str(tmp_path / "own-0-0.data"), 5) == b"bytes"
    finally:
        may_end.set()
        ahead.join(60)


def test_a_file_replaced_since_it_was_mapped_ahead_is_mapped_anew(tmp_path: Path) -> None:
    """As a rebuild does that could not finish in the old one."""
    path = tmp_path / "own-0-0.data"
    path.write_bytes(b"old" * 5000)
    arena = Arena(tmp_path, 0, 1)
    arena.map_ahead()
    path.unlink()
    assert arena.mapped(str(path), 3) is None
    path.write_bytes(b"new" * 5000)
    assert arena.mapped(str(path), 3) is None
    assert arena.slots[0].reserve(3)[:3] == b"new"
    assert arena.mapped(str(path), 3) == b"new"


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", path], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


def test_memory_that_is_not_there_is_an_error_not_a_crash(small_tmpfs: Path) -> None:
    slot = Slot(small_tmpfs, 0, 0)
    with pytest.raises(OSError) as caught:
        slot.reserve(1 << 20)
    assert caught.value.errno == errno.ENOSPC
    assert len(slot.reserve(4096)) >= 4096
