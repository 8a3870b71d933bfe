"""Degraded read, over real MPI: what survives is read while a lost shard is still being made again from parity."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_recover import damage, records
from test_trainer_mpi import SECTION, Nodes, agents_of, close_all
from trainer_kit import settle
from waiting import until

from ckpt import Checkpointer
from ckpt.errors import CheckpointError
from ckpt.format.checksums import checksums
from ckpt.redundancy.parity_record import read_parity, write_parity

NODES = ("a", "b", "c", "d")
LEFT = ("a", "c", "d")  # c is now rank 1, whose shard is lost; d is rank 2, whose shard lies on c
HELD = """
import asyncio, runpy, sys
from pathlib import Path
from ckpt.agent.protect.gather_sum import Sums
pull, go = Sums.pull, Path(sys.argv[1])
async def held(*args, **more):
    await pull(*args, **more)
    while not go.exists():
        await asyncio.sleep(0.01)
Sums.pull = held
sys.argv[1:] = []
runpy.run_module("ckpt.agent", run_name="__main__")
"""


class Loads:
    """The loads of all ranks of an attempt, each in a thread."""

    def __init__(self, ckpts: list[Checkpointer]) -> None:
        self.states: list[dict[str, Any]] = [state(-1, 0) for _ in ckpts]
        self._pool = ThreadPoolExecutor(len(ckpts))
        self._steps = [self._pool.submit(ckpt.load, live) for ckpt, live in zip(ckpts, self.states, strict=True)]

    @property
    def untouched(self) -> bool:
        return all(is_state(live, -1, 0) for live in self.states)

    @property
    def is_over(self) -> bool:
        return any(step.done() for step in self._steps)

    def steps(self) -> list[Any]:
        """What each load returned or raised."""
        self._pool.shutdown()
        return [step.exception() or step.result() for step in self._steps]

    def assert_are(self, step: int) -> None:
        assert self.steps() == [step] * len(self.states)
        assert all(is_state(live, rank, step) for rank, live in enumerate(self.states))


def state(rank: int, step: int) -> dict[str, Any]:
    """Of more than one block."""
    return {"x": np.arange(1_500_000, dtype=np.float32) + 7 * rank + step, "rank": rank}


def is_state(live: dict[str, Any], rank: int, step: int) -> bool:
    return live["rank"] == rank and np.array_equal(live["x"], state(rank, step)["x"])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What four nodes have in memory when they have saved steps 10 and 20, and b is lost."""
    path = tmp_path_factory.mktemp("saved")
    nodes = Nodes(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SECTION, "redundancy", {"scheme": "xor"})
        try:
            ckpts = nodes.start(*NODES)
            for step in (10, 20):
                for rank, ckpt in enumerate(ckpts):
                    ckpt.save(step, state(rank, step))
                for ckpt in ckpts:
                    settle(ckpt)
            close_all(ckpts)
        finally:
            nodes.stop()
    return path


@pytest.fixture
def nodes(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """The nodes left, whose agents do not end a rebuild before there is a file `go`."""
    for node in LEFT:
        shutil.copytree(saved / node, tmp_path / node, ignore=shutil.ignore_patterns("*.sock"))
    monkeypatch.setitem(SECTION, "redundancy", {"scheme": "xor"})
    nodes = Nodes(tmp_path, first_attempt=1)
    nodes.program = [sys.executable, "-c", HELD, str(tmp_path / "go")]
    yield nodes
    nodes.stop()


def prefetch(nodes: Nodes, loads: Loads) -> None:
    """Returns when node d has read the shard of saved rank 2 from c, though no rebuild has come to its end."""
    own, fetched = nodes.path / "c" / "own-0-1.data", nodes.path / "d" / "fetch-2.data"
    until(lambda: fetched.exists() and fetched.read_bytes() == own.read_bytes()[: fetched.stat().st_size])
    assert not any((20, 1) in records(nodes.path / node, kind).values() for node in LEFT for kind in ("own", "copy"))
    assert loads.untouched and not loads.is_over


def test_survivors_bytes_are_read_before_the_rebuild_has_ended(nodes: Nodes) -> None:
    ckpts = nodes.start(*LEFT)
    loads = Loads(ckpts)
    prefetch(nodes, loads)
    (nodes.path / "go").touch()
    loads.assert_are(20)
    until(lambda: not list(nodes.path.glob("*/fetch-*")))
    close_all(ckpts)


def test_a_rebuild_that_does_not_verify_gives_every_rank_the_older_step(nodes: Nodes) -> None:
    """Parity that matches its own record, and is wrong all the same."""
    record = read_parity(nodes.path / "d", "parity-1")
    damage(nodes.path / "d" / "parity-1.data")
    data = (nodes.path / "d" / "parity-1.data").read_bytes()[: record.nbytes]
    write_parity(nodes.path / "d", "parity-1", replace(record, blocks=checksums(memoryview(data))))
    ckpts = nodes.start(*LEFT)
    loads = Loads(ckpts)
    prefetch(nodes, loads)
    (nodes.path / "go").touch()
    loads.assert_are(10)
    log = (nodes.path / f"agents-{nodes.attempt}.log").read_text()
    assert "once more, with nothing prefetched" in log and "step 20 of attempt 0 passed over" in log
    close_all(ckpts)


@pytest.mark.parametrize("killed", ["a", "c"])
def test_killed_in_the_middle_of_a_rebuild_that_others_read_beside(nodes: Nodes, killed: str) -> None:
    """No state is changed, and the next attempt has the step: with the killed node, as the process alone was lost."""
    ckpts = nodes.start(*LEFT)
    loads = Loads(ckpts)
    prefetch(nodes, loads)
    (pid,) = agents_of(nodes.path, killed)
    os.kill(pid, signal.SIGKILL)
    assert all(isinstance(step, CheckpointError) for step in loads.steps()) and loads.untouched
    (nodes.path / "go").touch()
    ckpts = nodes.start(*LEFT)
    Loads(ckpts).assert_are(20)
    close_all(ckpts)
