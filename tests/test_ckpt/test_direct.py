"""Node files are written past the page cache where that can be, and come out the same where it cannot."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from ckpt.tiers import direct_io as direct
from ckpt.tiers.direct_io import PAGE_BYTES, DirectFile

SIZES = (1, PAGE_BYTES, 3 * PAGE_BYTES + 5, 2 * PAGE_BYTES)
Writes = list[tuple[bool, int, int]]  # past the page cache or not, offset, bytes


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    """What reached the kernel, and how."""
    seen: Writes = []
    real = os.pwrite

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        done = real(descriptor, data, offset)
        seen.append((bool(flags & os.O_DIRECT), offset, len(data)))
        return done

    monkeypatch.setattr(direct.os, "pwrite", pwrite)
    return seen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """On a disk that takes O_DIRECT, which old tmpfs does not."""
    try:
        os.close(os.open(tmp_path / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT))
    except OSError:
        pytest.skip(f"{tmp_path}: its file system has no O_DIRECT; set TMPDIR to a disk")
    return tmp_path


def shards() -> list[tuple[int, memoryview]]:
    """As an agent has them: maps, each shard at a page of the file, most of them not of whole pages."""
    pieces, offset = [], 0
    for size in SIZES:
        memory = mmap.mmap(-1, size)
        memory.write(os.urandom(size))
        pieces.append((offset, memoryview(memory)))
        offset += -(-size // PAGE_BYTES) * PAGE_BYTES
    return pieces


def write(path: Path, pieces: list[tuple[int, memoryview]]) -> int:
    """Returns the bytes that the rate limit was told of."""
    taken: list[int] = []
    file = DirectFile(path, taken.append)
    for offset, data in pieces:
        file.write(offset, data)
    file.finish()
    file.close()
    return sum(taken)


def assert_holds(path: Path, pieces: list[tuple[int, memoryview]]) -> None:
    content = path.read_bytes()
    assert all(content[offset : offset + len(data)] == data for offset, data in pieces)
    assert len(content) == max(offset + len(data) for offset, data in pieces)


def test_whole_pages_go_past_the_page_cache_and_odd_ends_follow(folder: Path, writes: Writes) -> None:
    pieces = shards()
    assert write(folder / "x", pieces) == sum(SIZES)
    assert_holds(folder / "x", pieces)
    page = PAGE_BYTES
    assert writes == [(True, page, page), (True, 2 * page, 3 * page), (True, 6 * page, 2 * page),
                      (False, 0, 1), (False, 5 * page, 5)]  # fmt: skip


def test_memory_that_lies_anywhere_is_written_through_the_page_cache(folder: Path, writes: Writes) -> None:
    odd = memoryview(bytearray(os.urandom(3 * PAGE_BYTES)))[1:]
    fixed = memoryview(os.urandom(PAGE_BYTES))
    pieces = [(0, odd), (4 * PAGE_BYTES, fixed)]
    write(folder / "x", pieces)
    assert_holds(folder / "x", pieces)
    assert [past for past, _, _ in writes] == [False, False]


def test_storage_that_refuses_a_write_past_the_page_cache_gets_it_the_other_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = os.pwrite, []

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(offset)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(descriptor, data, offset)

    monkeypatch.setattr(direct.os, "pwrite", pwrite)
    pieces = shards()
    write(folder / "x", pieces)
    assert_holds(folder / "x", pieces)
    assert len(refused) == 1  # asked once, not for every piece


def test_another_error_is_not_taken_for_a_refusal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(direct.os, "pwrite", full)
    file = DirectFile(folder / "x", lambda nbytes: None)
    try:
        with pytest.raises(OSError, match="No space left"):
            file.write(0, shards()[1][1])
    finally:
        file.close()
