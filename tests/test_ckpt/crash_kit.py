"""Kills a scenario before every change that it makes to files: a process for each such moment.

Moments are the removal and the renaming of anything, bytes about to be written or allocated, and a sum of a rebuild
that has come. All agents of a scenario live in one process, so they die together, wherever each of them is.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_kit import LINE, Worker, World, content, layout, run
from trainer_kit import LIMIT_S, processes

from ckpt.agent.protect.gather_sum import Sums
from ckpt.format.line import Line
from ckpt.format.shard_record import SaveId
from ckpt.memory.arena import Arena

_CHANGES = ("os.remove", "os.rename", "os.rmdir")  # audit events, raised before the change


class Fuse:
    """Counts moments from when it is armed, and kills this process at one of them."""

    def __init__(self, moment: int, told: int) -> None:
        self._left = moment
        self._told = told
        self._armed = False

    def arm(self) -> None:
        self._armed = True

    def tell(self, step: int) -> None:
        """A promise that must be kept whatever follows: this step has committed."""
        os.write(self._told, b"%d\n" % step)

    def lay(self) -> None:
        """To all that is a moment."""
        os.fsync = lambda descriptor: None  # what a killed process has written stays written
        sys.addaudithook(lambda event, _: self._burn() if event in _CHANGES else None)
        for name in ("pwrite", "posix_fallocate"):
            setattr(os, name, self._before(getattr(os, name)))
        pull = Sums.pull

        async def pulled(*args: Any, **more: Any) -> None:
            await pull(*args, **more)
            self._burn()

        Sums.pull = pulled  # type: ignore[method-assign]

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            self._burn()
            return function(*args)

        return wrapped

    def _burn(self) -> None:
        if self._armed:
            self._left -= 1
            if self._left < 0:
                os.kill(os.getpid(), signal.SIGKILL)


Scenario = Callable[[Path, Fuse], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Crash:
    """What a killed scenario has left."""

    moment: int
    root: Path
    told: int  # the newest step that was told


def crashes(scenario: Scenario, before: Path, folder: Path) -> Iterator[Crash]:
    """Runs a scenario in copies of a directory, killed one moment later each time, until it comes to its end.

    Args:
        scenario: a function of a module; is given the copy and a fuse, which it arms and tells.
        before: the directory.
        folder: for the copies; each goes when the next crash is asked for.
    """
    for moment in itertools.count():
        root = folder / f"crash-{moment}"
        shutil.copytree(before, root)
        process = processes.Process(target=_run, args=(scenario, root, moment, dict(os.environ)))
        process.start()
        process.join(LIMIT_S)
        code = process.exitcode
        process.kill()
        assert code in (0, -signal.SIGKILL), f"moment {moment}: exit code {code}"
        if code == 0:
            assert moment > 0, "nothing was ever changed"
            return
        yield Crash(moment=moment, root=root, told=max(map(int, (root / "told").read_text().split()), default=0))
        shutil.rmtree(root)


def _run(scenario: Scenario, root: Path, moment: int, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # the fork server may be older than a fixture's credentials
    fuse = Fuse(moment, os.open(root / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    fuse.lay()
    run(lambda: scenario(root, fuse))


class Trainers:
    """The workers of a world, which give up a slot as training processes do: by the rules of their arenas."""

    def __init__(self, world: World, slots: int) -> None:
        self._world = world
        self._arenas = [Arena(worker.place.ram_dir, worker.local_rank, slots) for worker in world.workers]

    async def load(self) -> dict[str, Any]:
        """The plan; what it restores stays until a newer save has committed."""
        plan = await self._world.plan()
        for arena in self._arenas:
            arena.adopt(SaveId.from_json(plan["save"]) if plan["save"] else None)
        return plan

    def go_on(self, world: World) -> None:
        """With the agents of a later generation."""
        self._world = world

    async def save(self, step: int, line: Line = LINE, *, salt: int = 0) -> None:
        """All save; returns when all have heard of the commit. The content is that of step + salt."""
        pairs = list(zip(self._world.workers, self._arenas, strict=True))
        for worker, arena in pairs:
            _stage(worker, arena, step, line, content(worker.rank, step + salt))
        for worker, arena in pairs:
            event = await worker.event("committed", step=step)
            arena.committed(step, pinned=event["pinned"])


def _stage(worker: Worker, arena: Arena, step: int, line: Line, data: bytes) -> None:
    slot = arena.take(step)
    assert slot is not None, arena.describe()
    slot.reserve(len(data))[: len(data)] = data
    worker.send(
        op="staged", slot=slot.index, step=step, rank=worker.rank, layout=layout(len(data)).to_json(),
        descent=line.to_json(), flush=False,
    )  # fmt: skip
