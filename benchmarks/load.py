"""The phases of a load after a restart: connection, plan, copy with checksums; by size and number of ranks.

    python benchmarks/load.py [--json] [--mib 64 512] [--ranks 1 2] [--rounds 5]

Each rank is a process on a node of its own, with a real agent. All agents run under one mpirun on this machine. Two or
more ranks keep partner copies. Each round is a new attempt: all ranks load at the same time, then all read the same
bytes by other ways. The figures are medians over the rounds, of the slowest rank of each round, in seconds:

    connection      from the connection until the agents, which already listen, have named the newest step
    plan            load() without the copies: it compares the state with the step, and the agent opens the shards
    copy            the copies into the state's tensors, with a verification of each byte
    plain copy, checksums, torch.load (with mmap, and a copy into the tensors), dcp.load: of the same bytes

The limit is the time of torch.load with mmap and copy, plus that of the checksums. `ratio` is load() / limit. `CPU
ratio` is the same for the CPU seconds of the worker's process, for a machine with other work. Both are medians over the
rounds. The CPU seconds of the agents are not counted.

The peers fill the same tensors, which are in memory already. Their files are in /dev/shm. The checksums are the same,
over blocks of the same size. Each peer runs twice, with one thread and with as many as load() has, and the faster run
counts. They start when the threads of the load have ended.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "test_ckpt"))

from mpi_kit import AgentProcesses

STEP = 10
_ANSWER_S = 120.0
_WAYS = ("connection", "plan", "copy", "load", "plain copy", "checksums", "torch.load", "dcp.load")
_LIMITED = ("load", "torch.load", "checksums")  # the first is to take no longer than the others together
_RATIOS = ("ratio", "CPU ratio")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print a list of rows")
    parser.add_argument("--mib", type=int, nargs="+", default=[64, 512], help="size of each rank's state")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = [measure(ranks, mib, args.rounds) for ranks in args.ranks for mib in args.mib]
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    table = Table("ranks", "MiB", *_WAYS, *_RATIOS, title=f"load() at a restart, seconds, medians of {args.rounds}")
    for row in rows:
        seconds = [f"{row[way]:.3f}" for way in _WAYS]
        ratios = [f"{row[ratio]:.2f}" for ratio in _RATIOS]
        table.add_row(str(row["ranks"]), str(row["mib"]), *seconds, *ratios)
    Console(width=130).print(table)
    return 0


def measure(ranks: int, mib: int, rounds: int) -> dict[str, Any]:
    """The medians of one size and number of ranks."""
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
                    slowest = {way: max(answer[way] for answer in answers) for way in (*_WAYS, *map(_cpu, _LIMITED))}
                    found.append(slowest | _ratios(slowest))
        for link, process in zip(links, started, strict=True):
            link.send(None)
            process.join(_ANSWER_S)
    medians = {name: statistics.median(each[name] for each in found) for name in found[0]}
    return {"ranks": ranks, "mib": mib, **{name: round(value, 4) for name, value in medians.items()}}


def _cpu(way: str) -> str:
    return f"{way}, CPU"


def _ratios(seconds: dict[str, float]) -> dict[str, float]:
    load, *limit = _LIMITED
    return {
        "ratio": seconds[load] / sum(seconds[way] for way in limit),
        "CPU ratio": seconds[_cpu(load)] / sum(seconds[_cpu(way)] for way in limit),
    }


def _answer(link: Connection) -> Any:
    if not link.poll(_ANSWER_S):
        raise RuntimeError(f"a rank has not answered within {_ANSWER_S:g} s")
    return link.recv()


def be_rank(rank: int, mib: int, folder: Path, link: Connection, together: Barrier) -> None:
    """The program of a rank: saves in the first attempt, and measures in each later one."""
    import torch
    import torch.distributed.checkpoint as dcp

    from ckpt.checkpointer import Checkpointer
    from ckpt.convert.dcp_safetensors import alone
    from ckpt.format.checksums import BLOCK_BYTES, checksum
    from ckpt.native.memcpy import threads_per_rank
    from ckpt.worker.load import shard_reader
    from ckpt_bench.figures import timed_and_cpu_s, timed_s
    from ckpt_bench.plain import MappedCopy
    from ckpt_bench.run import make_state

    torch.set_num_threads(1)
    state = make_state(mib << 20)
    tensors = list(state.values())
    views = [memoryview(tensor.numpy()).cast("B") for tensor in tensors]
    blocks = [view[start : start + BLOCK_BYTES] for view in views for start in range(0, len(view), BLOCK_BYTES)]
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

    def check() -> None:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(checksum, blocks))

    def fastest(work: Callable[[], Any]) -> tuple[float, float]:
        taken = []
        for threads in (threads_per_rank(1), 1):
            torch.set_num_threads(threads)
            together.wait(_ANSWER_S)
            taken.append(timed_and_cpu_s(work))
        return min(taken)

    while (environment := link.recv()) is not None:
        ckpt = Checkpointer.from_env(environment | {"RANK": str(rank), "LOCAL_RANK": "0"})
        together.wait(_ANSWER_S)
        connection_s = timed_s(lambda ckpt=ckpt: ckpt.newest_step)  # type: ignore[misc]
        together.wait(_ANSWER_S)
        copying[0] = 0.0
        load_s, load_cpu_s = timed_and_cpu_s(lambda ckpt=ckpt: ckpt.load(state))  # type: ignore[misc]
        measured = {"connection": connection_s, "load": load_s, "copy": copying[0], "plan": load_s - copying[0]}
        measured[_cpu("load")] = load_cpu_s
        if ckpt.newest_step is None:
            ckpt.save(STEP, state)
            ckpt.close()
            link.send(measured)
            continue
        ckpt.close()
        del ckpt
        for thread in threading.enumerate():
            if thread.name.startswith("ckpt-"):
                thread.join(_ANSWER_S)
        for way, work in {
            "plain copy": lambda: plain.fetch(tensors),
            "checksums": check,
            "torch.load": load_torch,
        }.items():
            measured[way], measured[_cpu(way)] = fastest(work)
        with alone():
            together.wait(_ANSWER_S)
            measured["dcp.load"] = timed_s(lambda: dcp.load(dict(state), checkpoint_id=directory))
        link.send(measured)


if __name__ == "__main__":
    sys.exit(main())
