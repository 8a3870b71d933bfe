"""Reads of a file system that hangs: the loop goes on, and one thread waits."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from holdfast.base.disk_read import DiskRead


def test_a_read_that_hangs_is_tried_by_one_thread_and_answers_when_it_can(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hangs")  # opening it waits for a writer
    begun: list[int] = []
    given: list[bytes] = []

    def read() -> bytes:
        begun.append(threading.get_ident())
        given.append((tmp_path / "hangs").read_bytes())
        return given[-1]

    async def scene() -> bytes:
        reads = DiskRead(read, tmp_path / "hangs")
        for _ in range(3):
            with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s.*hangs"):
                await reads.newest(0.01)
        assert len(begun) == 1
        await asyncio.to_thread((tmp_path / "hangs").write_bytes, b"old")
        while not given:
            await asyncio.sleep(0.01)
        newest = asyncio.create_task(reads.newest(30.0))
        await asyncio.to_thread((tmp_path / "hangs").write_bytes, b"new")
        return await newest

    assert asyncio.run(asyncio.wait_for(scene(), 30)) == b"new"


def test_an_answer_is_never_older_than_the_question(tmp_path: Path) -> None:
    begins, goes_on = threading.Event(), threading.Event()
    value = "old"

    def read() -> str:
        seen = value
        begins.set()
        goes_on.wait(30)
        return seen

    async def scene() -> list[str]:
        nonlocal value
        reads = DiskRead(read, tmp_path)
        first = asyncio.create_task(reads.newest(30.0))
        await asyncio.to_thread(begins.wait, 30)
        value = "new"
        later = [asyncio.create_task(reads.newest(30.0)) for _ in range(2)]
        goes_on.set()
        return [await first, *[await one for one in later]]

    assert asyncio.run(asyncio.wait_for(scene(), 30)) == ["old", "new", "new"]


def test_what_the_read_raises_is_raised(tmp_path: Path) -> None:
    reads = DiskRead((tmp_path / "none").read_bytes, tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        asyncio.run(reads.newest(30.0))
