"""The newest of a script's own checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.core.inputs import Input, OwnCheckpointsSeen
from launcher.supervisor.own_checkpoints import follow_own_checkpoints

DEADLINE_S = 30.0


class Followed:
    """What the core is given, and the end of workers."""

    def __init__(self) -> None:
        self._given: asyncio.Queue[Input] = asyncio.Queue()
        self.has_worker_ended = asyncio.Event()

    @contextlib.asynccontextmanager
    async def follow(self, pattern: str) -> AsyncIterator[None]:
        task = asyncio.create_task(follow_own_checkpoints(pattern, self.has_worker_ended, self._given.put_nowait))
        yield
        task.cancel()
        await asyncio.wait([task])

    async def next(self) -> Input:
        return await asyncio.wait_for(self._given.get(), DEADLINE_S)

    async def looks(self) -> list[Input]:
        """Lets it look once more, to the end. Returns what it gave."""
        for _ in range(2):
            self.has_worker_ended.set()
            while self.has_worker_ended.is_set():
                await asyncio.sleep(0)
        return [self._given.get_nowait() for _ in range(self._given.qsize())]


def test_a_relative_pattern_counts_from_the_directory_in_which_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run [1]"
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "1.pt").touch()
    monkeypatch.chdir(folder)

    async def first() -> Input:
        followed = Followed()
        async with followed.follow("out/*.pt"):
            return await followed.next()

    found = asyncio.run(first())
    assert isinstance(found, OwnCheckpointsSeen) and found.file == str(folder / "out" / "1.pt")


def test_the_newest_file_is_reported_once_for_each_change_as_soon_as_workers_have_ended(tmp_path: Path) -> None:
    def write(name: str, modified_s: float) -> str:
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (modified_s, modified_s))
        return str(path)

    async def follow() -> None:
        followed = Followed()
        async with followed.follow(f"{tmp_path}/out/**/ckpt-*.pt"):
            assert await followed.next() == OwnCheckpointsSeen(file="", modified_s=0.0)
            write("log.txt", 900.0)
            (tmp_path / "out" / "ckpt-0.pt").symlink_to("nowhere")
            second = write("a/ckpt-2.pt", 200.0)
            write("ckpt-1.pt", 100.0)
            assert await followed.looks() == [OwnCheckpointsSeen(file=second, modified_s=200.0)]
            assert await followed.looks() == []
            write("a/ckpt-2.pt", 300.0)
            assert await followed.looks() == [OwnCheckpointsSeen(file=second, modified_s=300.0)]

    asyncio.run(follow())
