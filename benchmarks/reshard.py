"""Seconds of a load into another world size: from the memory of other nodes, and cold from the shared directory.

    python benchmarks/reshard.py [--json] [--mib 512] [--rounds 3] [--scheme none]

Nodes save a state that is divided evenly among their ranks. All agents are real and run under one mpirun on this
machine. Then another number of nodes loads it, each rank its part. Nodes that are not needed any more still serve their
shards, as holders. The time is from the moment at which all agents listen until the last byte is copied and verified.
The result is that of the best round. For a cold load, the memory directories are empty and the files of the shared
directory are not in the page cache. The bytes are those sent over MPI, with those for redundancy. They are compared
with the bytes that ranks read and that their own nodes do not have, which is the minimum.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "test_ckpt"))

from mpi_kit import WAIT_S, AgentProcesses

from ckpt.agent.rpc.client import AgentClient
from ckpt.format.checksums import BLOCK_BYTES, damaged_blocks
from ckpt.format.shard_record import ShardRecord

RESIZES = ((2, 4), (4, 2), (4, 3))
NODES = [f"n{i}" for i in range(4)]
STEP = 10
COUNTED = """
import os, runpy, sys
from ckpt.agent.rpc.transport import MpiTransport
receive, count = MpiTransport.receive_range, [0]
file = os.open(os.environ["HOLDFAST_RAM_DIR"] + "/received", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
def counted(self, source, tag, into):
    count[0] += len(into)
    os.pwrite(file, b"%020d" % count[0], 0)
    return receive(self, source, tag, into)
MpiTransport.receive_range = counted
sys.argv[1:] = []
runpy.run_module("ckpt.agent", run_name="__main__")
"""
PROGRAMS = {node: [sys.executable, "-c", COUNTED, "ckpt.agent"] for node in NODES}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print {name: {value, unit, peer, ratio, bytes}}")
    parser.add_argument("--mib", type=int, default=512, help="size of the whole state")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scheme", default="none", help="redundancy: none, partner or xor")
    args = parser.parse_args()
    blocks = max(1, (args.mib << 20) // BLOCK_BYTES // 12) * 12  # divides evenly among the ranks of each world size
    rows = {
        f"{was} -> {now}": measure(was, now, blocks, args.rounds, {"redundancy": {"scheme": args.scheme}})
        for was, now in RESIZES
    }
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    title = f"{blocks * BLOCK_BYTES >> 20} MiB, redundancy {args.scheme}"
    table = Table("nodes", "from memory s", "cold s", "ratio", "MiB over MPI", "had to cross", "ratio", title=title)
    for name, row in rows.items():
        crossed, least = row["bytes"]["crossed"], row["bytes"]["least"]
        seconds = [f"{row['value']:.2f}", f"{row['peer']['cold']:.2f}", f"{row['ratio']:.2f}"]
        table.add_row(name, *seconds, f"{crossed / 2**20:.0f}", f"{least / 2**20:.0f}", f"{crossed / least:.2f}")
    Console().print(table)
    return 0


def measure(was: int, now: int, blocks: int, rounds: int, section: dict[str, Any]) -> dict[str, Any]:
    """The best round of one resize."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as disk,
    ):
        section = {**section, "shared": {"path": str(Path(disk) / "shared"), "every_steps": 1_000_000, "keep": 1}}
        saved, root = Path(memory) / "saved", Path(memory) / "root"
        saved.mkdir(mode=0o700)
        with AgentProcesses(saved, NODES[:was], 0, section) as agents:
            agents.save(STEP, 0, blocks // was * BLOCK_BYTES, flush=True)
            for worker in agents.workers:
                worker.request("await_saves", timeout_s=WAIT_S)
        warm, cold, crossed = [], [], 0
        for number in range(rounds):
            shutil.copytree(saved, root, ignore=shutil.ignore_patterns("*.sock", "*.pid", "*.log"))
            seconds, crossed = reshard(root, was, now, blocks, 2 * number + 1, section)
            warm.append(seconds)
            shutil.rmtree(root)
            root.mkdir(mode=0o700)
            drop_cached(Path(disk))
            cold.append(reshard(root, 0, now, blocks, 2 * number + 2, section, saved=was)[0])
            shutil.rmtree(root)
    return {
        "value": round(min(warm), 3), "unit": "s", "peer": {"cold": round(min(cold), 3)},
        "ratio": min(warm) / min(cold), "bytes": {"crossed": crossed, "least": least_bytes(was, now, blocks)},
    }  # fmt: skip


def reshard(
    root: Path, was: int, now: int, blocks: int, attempt: int, section: dict[str, Any], saved: int = 0
) -> tuple[float, int]:
    """The seconds of a load, and the bytes received over MPI. `was`: the number of nodes that saved the step."""
    nodes, holders, tier = NODES[:now], NODES[now:was], "memory" if was else "shared"
    with (
        AgentProcesses(root, nodes, attempt, section, PROGRAMS, holders=holders) as agents,
        ThreadPoolExecutor(now) as pool,
    ):
        since_s = time.perf_counter()
        work = [
            pool.submit(load, worker, wanted(rank, now, was or saved, blocks), tier)
            for rank, worker in enumerate(agents.workers)
        ]
        for done in work:
            done.result()
        seconds = time.perf_counter() - since_s
        received = [path.read_text() or "0" for path in root.glob("*/received")]
        return seconds, sum(map(int, received))


def load(worker: AgentClient, wants: dict[int, list[int]], tier: str) -> None:
    """Loads as Checkpointer.load does."""
    plan = worker.request("plan", timeout_s=WAIT_S)
    if (plan["step"], plan["tier"]) != (STEP, tier):
        raise RuntimeError(f"got step {plan['step']} from {plan['tier']}, expected step {STEP} from {tier}")
    for rank, blocks in wants.items():
        reply = worker.request("open", timeout_s=WAIT_S, rank=rank, blocks=blocks)
        record = ShardRecord.from_json(reply["record"])
        count, first = len(blocks) * BLOCK_BYTES, blocks[0] * BLOCK_BYTES
        data = np.fromfile(reply["path"], np.uint8, count, offset=reply["base"] + first)
        sums = record.blocks[blocks[0] : blocks[-1] + 1]
        if damaged_blocks(data.data, sums):
            raise RuntimeError(f"rank {rank} does not verify")


def wanted(rank: int, ranks: int, saved: int, blocks: int) -> dict[int, list[int]]:
    """For each saved rank, the blocks of its shard that a rank reads, in order and without a gap."""
    each, found = blocks // saved, dict[int, list[int]]()
    for block in range(rank * blocks // ranks, (rank + 1) * blocks // ranks):
        found.setdefault(block // each, []).append(block % each)
    return found


def least_bytes(was: int, now: int, blocks: int) -> int:
    """The least number of bytes that nodes must send each other. Node i has the shard of rank i."""
    wants = [wanted(rank, now, was, blocks) for rank in range(now)]
    return BLOCK_BYTES * sum(
        len(part) for node, want in enumerate(wants) for rank, part in want.items() if rank != node
    )


def drop_cached(folder: Path) -> None:
    """Removes the files from the page cache."""
    for path in folder.rglob("*.data"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
