"""Runs the agents of an attempt in this process and kills it at one stage.

    python kill_driver.py ROOT ATTEMPT STAGE [SCHEME]

Attempt 0 saves step 10, then step 20 and dies on the way; later attempts die on the way back.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_kit import World, config, run

from ckpt.agent.exchange import Exchange
from ckpt.agent.flush.leader import FlushLeader
from ckpt.agent.protect.gather_sum import Sums
from ckpt.agent.protect.node import ProtectNode
from ckpt.agent.save.node import SaveNode
from ckpt.agent.shards.memory_store import MemoryStore, ParityStore
from ckpt.format import atomic_files as files
from ckpt.format import shard_record as shard
from ckpt.tiers.posix import SharedTier


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, matches: Callable[..., bool] = lambda *_: True) -> None:
    """Dies when the function is about to be called with arguments that match."""
    function = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if matches(*args):
            die()
        return function(*args, **kwargs)

    setattr(owner, name, wrapped)


def after(owner: Any, name: str, matches: Callable[..., bool] = lambda *_: True) -> None:
    """Dies when the function has returned."""
    function = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if matches(*args):
            die()
        return result

    setattr(owner, name, wrapped)


def after_fetch(prefix: str) -> None:
    fetch = Exchange.fetch

    async def wrapped(self: Exchange, *args: Any, **kwargs: Any) -> None:
        await fetch(self, *args, **kwargs)
        names = [path.stem for path in self._memory_store.ram_dir.glob(f"{prefix}-*.data")]
        if any(not (self._memory_store.ram_dir / f"{name}.json").exists() for name in names):
            die()

    Exchange.fetch = wrapped  # type: ignore[method-assign]


def after_sums(of: str, count: int) -> None:
    """Dies when so many sums have come, for parity or for a lost shard, and nothing says so yet."""
    pull, made = Sums.pull, []

    async def wrapped(self: Sums, save: Any, over: Any, addends: Any, *rest: Any, **more: Any) -> None:
        await pull(self, save, over, addends, *rest, **more)
        if save.step == 20 and any(part.parity for addend in addends for part in addend.parts) == (of == "shard"):
            made.append(addends)
        if len(made) == count:
            die()

    Sums.pull = wrapped  # type: ignore[method-assign]


def of_20(*args: Any) -> bool:
    return args[-1].save.step == 20


def named(word: str) -> Callable[..., bool]:
    return lambda source, target: word in str(target)


STAGES: dict[str, Callable[[], None]] = {
    "first shard sealed": lambda: before(MemoryStore, "publish", of_20),
    "first record written": lambda: after(MemoryStore, "publish", of_20),
    "before a copy verifies": lambda: after_fetch("copy"),
    "before a copy's record": lambda: before(MemoryStore, "publish", lambda s, n, r: n[:4] == "copy" and of_20(r)),
    "before a copy's record is renamed": lambda: before(files.os, "replace", named("copy-")),
    "after a copy's record": lambda: after(MemoryStore, "publish", lambda s, n, r: n[:4] == "copy" and of_20(r)),
    "first commit heard": lambda: before(SaveNode, "_tidy", lambda s: s._saves.newest.step == 20),
    "before a node's file": lambda: before(SharedTier, "write_node", lambda t, s, *_: s.step == 20),
    "after a node's file": lambda: after(SharedTier, "write_node", lambda t, s, *_: s.step == 20),
    "before the manifest": lambda: before(SharedTier, "commit", lambda t, s, *_: s.step == 20),
    "before the manifest is renamed": lambda: before(files.os, "replace", named("manifest.json")),
    "after the manifest": lambda: after(SharedTier, "commit", lambda t, s, *_: s.step == 20),
    "before a superfluous step is renamed": lambda: before(files.os, "replace", named(".trash-")),
    "after a superfluous step is renamed": lambda: after(files.os, "replace", named(".trash-")),
    "before its directory is removed": lambda: before(files.os, "rmdir"),
    "before a claim is renamed": lambda: before(files.os, "replace", named("owner.json")),
    "after a claim is renamed": lambda: after(files.os, "replace", named("owner.json")),
    "before a rebuilt shard verifies": lambda: after_fetch("own"),
    "before a rebuilt shard's record": lambda: before(shard, "durable_write", lambda path, _: "own-" in str(path)),
    "after a rebuilt shard's record": lambda: after(MemoryStore, "publish", lambda s, n, r: n[:3] == "own"),
    "first sum of parity": lambda: after_sums("parity", 1),
    "last sum of parity": lambda: after_sums("parity", 3),
    "before parity's record": lambda: before(ParityStore, "publish", of_20),
    "before parity's record is renamed": lambda: before(files.os, "replace", named("parity-")),
    "after parity's record": lambda: after(ParityStore, "publish", of_20),
    "after all parity": lambda: before(FlushLeader, "wanted", lambda s, step, _: step == 20),
    "first sum of a lost shard": lambda: after_sums("shard", 1),
    "last sum of a lost shard": lambda: after_sums("shard", 2),
    "before parity is made again": lambda: before(ProtectNode, "_make_parity"),
    "before a copy is made again": lambda: before(MemoryStore, "publish", lambda s, n, r: n[:4] == "copy"),
}


def main(root: Path, attempt: int, stage: str, scheme: str = "partner") -> None:
    async def scenario() -> None:
        checkpoint = config(root / "shared", scheme)
        nodes = ["a", "b", "c"] if attempt == 0 else ["a", f"spare-{attempt}", "c"]
        if attempt == 0:
            async with World(root, nodes, attempt, checkpoint) as world:
                if "superfluous" in stage or "directory" in stage:
                    await world.save(5, 2, flush=True)  # superfluous when step 20 is there
                    await world.await_saves()
                await world.save(10, 0)
                await world.await_saves()
                STAGES[stage]()
                await world.save(20, 1)
                await world.await_saves()
                await world.monitors[0].event("never")  # retention and claims go on beside the saves
        STAGES[stage]()
        async with World(root, nodes, attempt, checkpoint) as world:
            await world.plan()
            await world.monitors[0].event("never")

    run(scenario)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
