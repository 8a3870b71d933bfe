"""The newest of a script's own checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from launcher.core.inputs import Input, NodeLost, OwnCheckpointsSeen, WorkersKilled
from launcher.supervisor import own_checkpoints
from launcher.supervisor.own_checkpoints import OwnCheckpoints

DEADLINE_S = 30.0


class Followed:
    """What the core is given."""

    def __init__(self, pattern: str) -> None:
        self._given: asyncio.Queue[Input] = asyncio.Queue()
        self._attempts = itertools.count()
        self.own = OwnCheckpoints(pattern, self._given.put_nowait)

    @contextlib.asynccontextmanager
    async def follow(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.own.follow())
        yield
        task.cancel()
        await asyncio.wait([task])

    async def next(self) -> Input:
        return await asyncio.wait_for(self._given.get(), DEADLINE_S)

    async def before(self, ended: WorkersKilled) -> list[Input]:
        """Ends the workers of an attempt. Returns what the core is given before it hears of that."""
        assert self.own.holds_back(ended)
        found = []
        while (given := await self.next()) != ended:
            found.append(given)
        assert not self.own.holds_back(ended)
        return found

    async def looks(self) -> list[Input]:
        return await self.before(WorkersKilled(node="a", attempt=next(self._attempts)))


def test_a_relative_pattern_counts_from_the_directory_in_which_the_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run [1]"
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "1.pt").touch()
    monkeypatch.chdir(folder)

    async def first() -> Input:
        followed = Followed("out/*.pt")
        async with followed.follow():
            return await followed.next()

    found = asyncio.run(first())
    assert isinstance(found, OwnCheckpointsSeen) and found.file == str(folder / "out" / "1.pt")


def test_the_newest_file_is_reported_once_for_each_change_before_the_end_of_its_writers(
    tmp_path: Path,
) -> None:
    def write(name: str, modified_s: float) -> str:
        path = tmp_path / "out" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (modified_s, modified_s))
        return str(path)

    async def follow() -> None:
        followed = Followed(f"{tmp_path}/out/**/ckpt-*.pt")
        async with followed.follow():
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


def test_a_folder_that_hangs_delays_the_end_of_an_attempt_and_does_not_prevent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that hangs cannot be made here: a look that does not return stands for it."""
    goes_on, real = threading.Event(), own_checkpoints._newest
    monkeypatch.setattr(own_checkpoints, "LAST_LOOK_S", 0.05)
    monkeypatch.setattr(own_checkpoints, "_newest", lambda pattern: goes_on.wait(DEADLINE_S) and real(pattern))

    async def follow() -> None:
        followed = Followed(f"{tmp_path}/*.pt")
        async with followed.follow():
            assert await followed.looks() == []
            goes_on.set()
            assert await followed.next() == OwnCheckpointsSeen(file="", modified_s=0.0)

    asyncio.run(follow())


def test_only_the_end_of_workers_waits(tmp_path: Path) -> None:
    async def give() -> bool:
        return OwnCheckpoints(f"{tmp_path}/*.pt", lambda given: None).holds_back(NodeLost(node="a", reason="closed"))

    assert not asyncio.run(give())
