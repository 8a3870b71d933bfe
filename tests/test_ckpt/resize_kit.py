"""What the tests of resizes share: a state that any number of ranks divides among them, and what crosses the wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from agent_kit import FakeTransport, Worker, World, until

from ckpt.agent.restore.handover import Handover
from ckpt.agent.restore.serve import Loading
from ckpt.format.checksums import BLOCK_BYTES
from ckpt.format.shard_record import read_record
from ckpt.tiers.posix import SharedTier

BLOCKS = 12  # of the state; a multiple of each number of ranks in the tests
SCHEMES: dict[str, dict[str, Any]] = {
    "none": {"scheme": "none"}, "partner": {}, "xor": {"scheme": "xor"}, "rs": {"scheme": "rs", "parity": 2},
}  # fmt: skip


def block(index: int, step: int) -> bytes:
    """One block of the state: no two are alike."""
    return bytes((index * 37 + step * 11 + i) % 251 for i in range(256)) * (BLOCK_BYTES // 256)


def part(index: int, parts: int, step: int) -> bytes:
    """The shard of one of some ranks."""
    each = BLOCKS // parts
    return b"".join(block(i, step) for i in range(index * each, (index + 1) * each))


async def save(world: World, step: int, slot: int, flush: bool = False) -> None:
    """All ranks save their parts of the state; returns when all have heard of the commit."""
    for worker in world.workers:
        worker.save(step, slot, part(worker.rank, len(world.workers), step), flush=flush)
    for worker in world.workers:
        await worker.event("committed", step=step)


def wanted(rank: int, ranks: int, saved: int) -> dict[int, list[int]]:
    """By saved rank, the blocks that a rank reads of its shard."""
    each, blocks = BLOCKS // saved, range(rank * BLOCKS // ranks, (rank + 1) * BLOCKS // ranks)
    found: dict[int, list[int]] = {}
    for index in blocks:
        found.setdefault(index // each, []).append(index % each)
    return found


async def load(world: World, saved: int, step: int) -> None:
    """Every rank reads its part of what some ranks saved, and has the right bytes."""
    ranks = len(world.workers)
    for worker in world.workers:
        data = bytearray()
        for rank, blocks in wanted(worker.rank, ranks, saved).items():
            data += await _blocks(worker, rank, blocks)
        assert bytes(data) == part(worker.rank, ranks, step), worker.rank


async def _blocks(worker: Worker, rank: int, blocks: list[int]) -> bytes:
    reply = await worker.request("open", rank=rank, blocks=blocks)
    assert "error" not in reply, reply
    found = []
    with open(reply["path"], "rb") as file:
        for index in blocks:
            file.seek(reply["base"] + index * BLOCK_BYTES)
            found.append(file.read(BLOCK_BYTES))
    return b"".join(found)


def needed_bytes(root: Path, nodes: list[str], saved: int, step: int) -> int:
    """What has to cross the wire at least: what each node's rank reads and no shard in its memory has."""
    total = 0
    for rank, node in enumerate(nodes):
        records = [read_record(root / node, path.stem) for path in (root / node).glob("[oc]*.json")]
        here = {record.rank for record in records if record.save.step == step}
        total += sum(len(blocks) for r, blocks in wanted(rank, len(nodes), saved).items() if r not in here)
    return total * BLOCK_BYTES


@dataclass
class Traffic:
    """Bytes of loads and of hand-overs that have crossed the wire, and what was read in the shared directory."""

    load_bytes: int = 0
    shared_reads: list[Any] = field(default_factory=list)


def traffic(patch: pytest.MonkeyPatch) -> Traffic:
    """Counts from now on; redundancy and rebuilds do not count."""
    counted, is_load = Traffic(), ContextVar("is_load", default=False)
    receive = FakeTransport.receive_range

    def received(self: FakeTransport, source: int, tag: int, into: memoryview) -> Any:
        if is_load.get():
            counted.load_bytes += len(into)
        return receive(self, source, tag, into)

    def loading(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counting(*args: Any) -> Any:
            token = is_load.set(True)
            try:
                return await function(*args)
            finally:
                is_load.reset(token)

        return counting

    def reading(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            counted.shared_reads.append(args)
            return function(*args)

        return noted

    patch.setattr(FakeTransport, "receive_range", received)
    patch.setattr(Loading, "_remote", loading(Loading._remote))
    patch.setattr(Handover, "run", loading(Handover.run))
    for name in ("read", "data_path"):
        patch.setattr(SharedTier, name, reading(getattr(SharedTier, name)))
    return counted


async def protected(log: pytest.LogCaptureFixture) -> None:
    """Waits until the step restored last has its redundancy over the nodes that train; forgets the log."""
    await until(lambda: "redundancy of the restored step" in log.text)
    log.clear()
