"""Seconds of a load into fewer nodes while a lost shard is rebuilt from parity, with and without prefetch.

    python benchmarks/degraded.py [--json] [--mib 128] [--rounds 3]

Four nodes, each a real agent under one mpirun on this machine, save a step. The second node is lost. The other three
nodes load as ranks 0 to 2, and rank r loads the shard of saved rank r. So one shard is on its own node, one is rebuilt,
and one comes from another node. The time is from the moment at which all agents listen until the last byte is copied
and verified. The result is that of the best round.
"""

from __future__ import annotations

import argparse
import json
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

from mpi_kit import AgentProcesses

from ckpt.agent.rpc.client import AgentClient
from ckpt.format.checksums import damaged_blocks
from ckpt.format.shard_record import ShardRecord

SCHEMES = {"XOR": {"scheme": "xor"}, "RS 2": {"scheme": "rs", "parity": 2}}
WAIT_S = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print {name: {value, unit, peer, ratio}}")
    parser.add_argument("--mib", type=int, default=128, help="size of each rank's shard")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    for name, redundancy in SCHEMES.items():
        ahead, after = measure({"redundancy": redundancy}, args.mib << 20, args.rounds)
        rows[name] = {"value": round(ahead, 3), "unit": "s", "peer": {"after": round(after, 3)}, "ratio": ahead / after}
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    table = Table("", "reading ahead s", "after the rebuild s", "ratio", title=f"4 nodes x {args.mib} MiB into 3")
    for name, row in rows.items():
        table.add_row(name, f"{row['value']:.2f}", f"{row['peer']['after']:.2f}", f"{row['ratio']:.2f}")
    Console().print(table)
    return 0


def measure(section: dict[str, object], nbytes: int, rounds: int) -> tuple[float, float]:
    """The best rounds with and without prefetch. The two kinds of rounds alternate."""
    best = {True: float("inf"), False: float("inf")}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as folder:
        root = Path(folder)
        with AgentProcesses(root, ["a", "b", "c", "d"], 0, section) as agents:
            agents.save(10, 0, nbytes)
        shutil.rmtree(root / "b")
        saved = {path.name for node in "acd" for path in (root / node).iterdir()}
        for i in range(2 * rounds):
            with AgentProcesses(root, ["a", "c", "d"], 1 + i, section) as agents, ThreadPoolExecutor(3) as pool:
                since_s = time.perf_counter()
                work = [pool.submit(load, worker, rank, i % 2 == 0) for rank, worker in enumerate(agents.workers)]
                for done in work:
                    done.result()
                best[i % 2 == 0] = min(best[i % 2 == 0], time.perf_counter() - since_s)
            for path in [path for node in "acd" for path in (root / node).iterdir() if path.name not in saved]:
                path.unlink()  # remove the rebuilt shard, so that the next round starts from the same loss
    return best[True], best[False]


def load(worker: AgentClient, rank: int, ahead: bool) -> None:
    """Loads as Checkpointer.load does."""
    if ahead and (step := worker.request("foreseen", timeout_s=WAIT_S)["step"]):
        worker.send("prefetch", step=step, wants=[[rank, None]])
    worker.request("plan", timeout_s=WAIT_S)
    reply = worker.request("open", timeout_s=WAIT_S, rank=rank, blocks=None)
    record = ShardRecord.from_json(reply["record"])
    data = np.fromfile(reply["path"], np.uint8, record.nbytes, offset=reply["base"])
    if damaged_blocks(data.data, record.blocks):
        raise RuntimeError(f"rank {rank} does not verify")


if __name__ == "__main__":
    sys.exit(main())
