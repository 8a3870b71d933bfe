"""Memory that is taken while it is filled."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_kit import NAMESPACE, RUN_ID, open_below
from waiting import until

from ckpt.agent.shards import growing_buffer as rooms
from ckpt.agent.shards.growing_buffer import SLICE_BYTES, Room
from ckpt.agent.shards.memory_store import MemoryStore

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
NBYTES = 3 * SLICE_BYTES + 12345


def room_for(path: Path, nbytes: int = NBYTES) -> Room:
    return MemoryStore(path, RUN_ID, NAMESPACE).room_for("own-0-0", nbytes)


def taken(path: Path) -> int:
    return 512 * (path / "own-0-0.data").stat().st_blocks


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes memory ahead of who asks for it."""
    monkeypatch.setattr(Room, "_go_ahead", lambda self: None)


def test_memory_is_there_when_it_is_given(tmp_path: Path, alone: None) -> None:
    with room_for(tmp_path) as room:
        assert SLICE_BYTES <= taken(tmp_path) < 2 * SLICE_BYTES
        for start in (2 * SLICE_BYTES, SLICE_BYTES, 3 * SLICE_BYTES):
            before, stop = taken(tmp_path), min(start + SLICE_BYTES, NBYTES)
            assert len(room(start, stop)) == stop - start <= taken(tmp_path) - before
        assert taken(tmp_path) >= NBYTES


def test_memory_is_taken_ahead_of_who_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with room_for(tmp_path) as room:
        until(lambda: taken(tmp_path) >= NBYTES and room._there >= NBYTES, "all memory is there")
        monkeypatch.setattr(os, "posix_fallocate", None)
        assert not any(room(NBYTES - 5, NBYTES))


def test_no_more_is_taken_once_nobody_fills_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(rooms, "populate_for_writing", lambda memory, start, nbytes: ended.wait(60))
    room = room_for(tmp_path)
    with pytest.raises(ValueError, match="a peer is gone"), room:
        raise ValueError("a peer is gone")
    ended.set()
    until(lambda: "_go_ahead" not in str(threading.enumerate()), "nobody goes ahead")
    assert taken(tmp_path) < 2 * SLICE_BYTES
    with pytest.raises(OSError, match="after the end of the filling"):  # who has not heard of the end
        room(2 * SLICE_BYTES, 3 * SLICE_BYTES)


def test_its_descriptor_goes_with_it(tmp_path: Path) -> None:
    for _ in range(3):
        with room_for(tmp_path) as room:
            room.all()
            assert open_below(tmp_path)
        until(lambda: "_go_ahead" not in str(threading.enumerate()), "nobody goes ahead")
        (tmp_path / "own-0-0.data").unlink()
    del room
    assert not open_below(tmp_path)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with memory for two slices."""
    path = tmp_path / "small"
    path.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={2 * SLICE_BYTES}", "tmpfs", str(path)], check=True)
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@needs_root
def test_what_cannot_fit_takes_nothing(small: Path) -> None:
    with pytest.raises(OSError, match=f"{NBYTES >> 20} MiB wanted, {2 * SLICE_BYTES >> 20} MiB free") as error:
        room_for(small)
    assert (error.value.errno, taken(small)) == (errno.ENOSPC, 0)


@needs_root
def test_who_fills_it_hears_that_others_have_filled_the_memory_meanwhile(small: Path, alone: None) -> None:
    with room_for(small, 2 * SLICE_BYTES) as room:
        (small / "others").write_bytes(bytes(SLICE_BYTES // 2))
        with pytest.raises(OSError, match="No space left"):
            room(SLICE_BYTES, 2 * SLICE_BYTES)
