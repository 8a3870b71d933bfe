"""What a worker waits for at a restart, split: connection, plan, copy with checksums; by size and number of ranks.

    python benchmarks/load.py [--json] [--mib 64 512] [--ranks 1 2] [--rounds 5]

Each rank is a process on a node of its own, with a real agent under one mpirun on this machine; two or more ranks keep
partner copies. Every round is a new attempt: all ranks load at once, and then read the same bytes as torch does, at
once as well. Medians of the slowest rank of each round, in seconds:

    connection      until the agents, which listen already, have named the newest step
    plan            load() without the copies: the state is matched, the agent opens the shards
    copy            the copies into the state's tensors, each byte verified
    plain copy, checksums, torch.load (with mmap, and copied into the tensors), dcp.load: of the same bytes

The limit is torch.load with mmap and copy, plus the checksums' own time; the ratio is load() beside that.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "ckpt"))

from mpi_kit import AgentProcesses

STEP = 10
_ANSWER_S = 120.0
_WAYS = ("connection", "plan", "copy", "load", "plain copy", "checksums", "torch.load", "dcp.load")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of rows")
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 512], help="of each rank's state")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = [measure(ranks, mib, args.rounds) for ranks in args.ranks for mib in args.mib]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    table = Table("ranks", "MiB", *_WAYS, "ratio", title=f"load() at a restart, seconds, medians of {args.rounds}")
    for row in rows:
        seconds = [f"{row[way]:.3f}" for way in _WAYS]
        table.add_row(str(row["ranks"]), str(row["mib"]), *seconds, f"{row['ratio']:.2f}")
    Console(width=120).print(table)
    return 0


def measure(ranks: int, mib: int, rounds: int) -> dict[str, Any]:
    """Medians of one size."""
    nodes = [f"n{rank}" for rank in range(ranks)]
    section = {"redundancy": {"scheme": "partner"}} if ranks > 1 else {}
    processes = multiprocessing.get_context("spawn")
    together = processes.Barrier(ranks)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as folder:
        links, started = [], []
        for rank in range(ranks):
            here, there = processes.Pipe()
            process = processes.Process(target=be_rank, args=(rank, mib, Path(folder), there, together), daemon=True)
            process.start()
            links.append(here)
            started.append(process)
        found = []
        for attempt in range(rounds + 1):
            with AgentProcesses(Path(folder), nodes, attempt, section, has_workers=False) as agents:
                for link, ram_dir in zip(links, agents.ram_dirs, strict=True):
                    link.send(agents.environment(ram_dir))
                answers = [_answer(link) for link in links]
                if attempt:
                    found.append({way: max(answer[way] for answer in answers) for way in _WAYS})
        for link, process in zip(links, started, strict=True):
            link.send(None)
            process.join(_ANSWER_S)
    row: dict[str, Any] = {way: statistics.median(each[way] for each in found) for way in _WAYS}
    ratio = row["load"] / (row["torch.load"] + row["checksums"])
    return {"ranks": ranks, "mib": mib, **{way: round(row[way], 4) for way in _WAYS}, "ratio": round(ratio, 3)}


def _answer(link: Connection) -> Any:
    if not link.poll(_ANSWER_S):
        raise RuntimeError(f"a rank has not answered within {_ANSWER_S:g} s")
    return link.recv()


def be_rank(rank: int, mib: int, folder: Path, link: Connection, together: Barrier) -> None:
    """Saves in the first attempt, and measures in each later one."""
    import torch
    import torch.distributed.checkpoint as dcp

    from ckpt.checkpointer import Checkpointer
    from ckpt.convert.dcp_safetensors import alone
    from ckpt.format.checksums import checksums
    from ckpt.worker.load import shard_reader
    from ckpt_bench.figures import timed_s
    from ckpt_bench.plain import MappedCopy
    from ckpt_bench.run import make_state

    torch.set_num_threads(1)
    state = make_state(mib << 20)
    tensors = list(state.values())
    views = [memoryview(tensor.numpy()).cast("B") for tensor in tensors]
    plain = MappedCopy(folder / f"plain-{rank}", tensors)
    plain.store(tensors)
    file, directory = folder / f"torch-{rank}.pt", folder / f"dcp-{rank}"
    torch.save(state, file)
    with alone():
        dcp.save(state, checkpoint_id=directory)
    copying = [0.0]
    copy_verified = shard_reader.copy_verified

    def counted(*args: Any) -> Any:
        started = time.perf_counter()
        try:
            return copy_verified(*args)
        finally:
            copying[0] += time.perf_counter() - started

    shard_reader.copy_verified = counted  # type: ignore[assignment]

    def load_torch() -> None:
        for name, tensor in torch.load(file, mmap=True).items():
            state[name].copy_(tensor)

    while (environment := link.recv()) is not None:
        ckpt = Checkpointer.from_env(environment | {"RANK": str(rank), "LOCAL_RANK": "0"})
        together.wait(_ANSWER_S)
        connection_s = timed_s(lambda ckpt=ckpt: ckpt.newest_step)  # type: ignore[misc]
        together.wait(_ANSWER_S)
        copying[0] = 0.0
        load_s = timed_s(lambda ckpt=ckpt: ckpt.load(state))  # type: ignore[misc]
        measured = {"connection": connection_s, "load": load_s, "copy": copying[0], "plan": load_s - copying[0]}
        if ckpt.newest_step is None:
            ckpt.save(STEP, state)
            ckpt.close()
            link.send(measured)
            continue
        ckpt.close()
        ways = {
            "plain copy": lambda: plain.fetch(tensors),
            "checksums": lambda: [checksums(view) for view in views],
            "torch.load": load_torch,
        }
        for way, work in ways.items():
            together.wait(_ANSWER_S)
            measured[way] = timed_s(work)
        with alone():
            together.wait(_ANSWER_S)
            measured["dcp.load"] = timed_s(lambda: dcp.load(dict(state), checkpoint_id=directory))
        link.send(measured)


if __name__ == "__main__":
    sys.exit(main())
