"""Encode and rebuild rates of each scheme with real agents, beside a plain MPI Sendrecv of the same bytes, and redset.

    python benchmarks/redundancy.py [--json] [--ranks 8] [--mib 256] [--tcp] [--only partner,xor]
        [--redset DRIVER] [--worlds 3]

All agents run under one mpirun on this machine, one for each rank, each with its own memory directory, in one
redundancy set. The encode rate, as redset's, is the bytes of all ranks' shards divided by the time from the call for
redundancy until the last record is written, with checksums. The rebuild rate counts the bytes of the one lost rank. The
processes exchange data through shared memory, as in redset's runs; with --tcp, through sockets, as agents do.

The speed of a machine that others share changes within seconds. So a plain Sendrecv runs before each measurement, and
the result is the median ratio of the two. With --redset, redset does the same work over the same MPI, in turn with
Holdfast, --worlds times. benchmarks/redset_peer.c says how to build the program for that.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ckpt.agent.context import Context
from ckpt.agent.exchange import Exchange
from ckpt.agent.process.launch import environment
from ckpt.agent.protect.leader import RebuildLeader
from ckpt.agent.protect.node import ProtectNode
from ckpt.agent.rpc.messages import BETWEEN, message, serves
from ckpt.agent.rpc.peers import Peers
from ckpt.agent.rpc.transport import MpiTransport
from ckpt.agent.rpc.worker_socket import WorkerSocket
from ckpt.agent.saves import NodeSaves
from ckpt.agent.shards.held import Held
from ckpt.agent.shards.memory_store import MemoryStore
from ckpt.agent.shards.node_disk import NodeDisk
from ckpt.config import CheckpointConfig, Place
from ckpt.format.checksums import checksums
from ckpt.format.layout import Layout
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.timeouts import AgentDeadlines
from holdfast.base.messages import fields

SCHEMES: dict[str, dict[str, Any]] = {  # by the names in redset_peer.c
    "partner": {"scheme": "partner"},
    "xor": {"scheme": "xor"},
    "rs1": {"scheme": "rs", "parity": 1},
    "rs2": {"scheme": "rs", "parity": 2},
}
REDSET_MB_PER_S = {  # redset (C) on another machine: 8 ranks x 256 MB in /dev/shm, 2 cores
    "partner": (1757, 474), "xor": (3120, 350), "rs1": (1422, 132), "rs2": (652, 167),
}  # fmt: skip
LOST = 1
ROUNDS = 4  # the first one does not count, because it allocates memory
SAVE = SaveId(step=1, attempt=0, run_id="bench")

Seconds = dict[str, list[float]]  # of each round, by name, such as "xor, encode" or "xor, encode, raw"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print {name: {value, unit, peer, ratio}}")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--mib", type=int, default=256, help="size of each rank's shard")
    parser.add_argument("--tcp", action="store_true", help="use sockets, not shared memory, between the processes")
    parser.add_argument("--only", default=",".join(SCHEMES), help=f"schemes to measure, of {', '.join(SCHEMES)}")
    parser.add_argument("--redset", metavar="DRIVER", help="path of redset_peer; see benchmarks/redset_peer.c")
    parser.add_argument("--worlds", type=int, default=1, help="number of repetitions, each followed by redset's")
    args = parser.parse_args()
    schemes = args.only.split(",")
    ours: list[Seconds] = []
    redsets: list[Seconds] = []
    for _ in range(args.worlds):
        worker = [sys.executable, __file__, "--worker"]
        ours.append(in_world(args.ranks, args.tcp, worker, str(args.ranks), str(args.mib), args.only))
        if args.redset:
            rounds = str(ROUNDS - 1)
            redsets.append(in_world(args.ranks, args.tcp, [args.redset], str(args.mib), rounds, str(LOST), *schemes))
    report(rows_of(ours, redsets, schemes, args.ranks, args.mib << 20), args)
    return 0


def in_world(ranks: int, tcp: bool, program: list[str], *args: str) -> Seconds:
    """Runs a program once on each rank, with a common directory in memory. Returns what rank 0 prints."""
    mpi = environment(loopback=True)
    if not tcp:
        for name in [name for name in mpi if name.startswith("OMPI_MCA")]:
            del mpi[name]
        mpi |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm", "OMPI_MCA_btl_sm_backing_directory": "/dev/shm"}
    mpirun = [str(Path(sys.executable).with_name("mpirun")), "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as root:
        own = ["--prtemca", "prte_tmpdir_base", root]  # the default may have files of a killed mpirun with the same pid
        done = subprocess.run(
            [*mpirun, *own, *program, root, *args], env={**os.environ, **mpi, "PYTHONPATH": path}, check=False,
            text=True, stdout=subprocess.PIPE,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"{done.stdout}{program[0]}: exit status {done.returncode}")
    seconds: Seconds = json.loads(done.stdout.splitlines()[-1])
    return seconds


def rows_of(ours: list[Seconds], redsets: list[Seconds], schemes: list[str], ranks: int, nbytes: int) -> dict[str, Any]:
    """The medians over all rounds: of the rates, and of the ratios to the Sendrecv before each round and to redset."""
    rows = {}
    for name, kind in ((name, kind) for name in schemes for kind in ("encode", "rebuild")):
        moved = (ranks * nbytes if kind == "encode" else nbytes) / 1e9
        key = f"{name}, {kind}"
        taken = [s for world in ours for s in world[key]]
        raw = [s for world in ours for s in world[f"{key}, raw"]]
        row: dict[str, Any] = {"value": moved / median(taken), "unit": "GB/s"}
        row["peer"] = {"Sendrecv": moved / median(raw)}
        row["ratio"] = median(r / s for r, s in zip(raw, taken, strict=True))
        if redsets:
            row["peer"]["redset"] = moved / median(s for world in redsets for s in world[key])
            row["redset_ratio"] = median(
                median(theirs[key]) / median(mine[key]) for mine, theirs in zip(ours, redsets, strict=True)
            )
        rows[f"{name} {kind}"] = row
    return rows


def report(rows: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    columns = ["", "GB/s", "raw Sendrecv", "ratio", *(["redset", "ratio"] if args.redset else ["redset (FIELD)"])]
    table = Table(*columns, title=f"{args.ranks} ranks x {args.mib} MiB, {'TCP' if args.tcp else 'shared memory'}")
    for name, row in rows.items():
        values = [row["value"], row["peer"]["Sendrecv"], row["ratio"]]
        if args.redset:
            values += [row["peer"]["redset"], row["redset_ratio"]]
        else:
            scheme, kind = name.split()
            values.append(REDSET_MB_PER_S[scheme][kind == "rebuild"] / 1000)
        table.add_row(name, *(f"{value:.2f}" for value in values))
    Console().print(table)


def work(root: Path, ranks: int, nbytes: int, schemes: list[str]) -> None:
    """The program of one rank: measures everything. Rank 0 prints the result."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    nodes = tuple(f"n{i}" for i in range(ranks))
    place = Place(
        run_id=SAVE.run_id, attempt=0, node=nodes[rank], nodes=nodes, ranks_per_node=1, ram_dir=root / nodes[rank]
    )
    place.ram_dir.mkdir(mode=0o700)
    transport = MpiTransport(nodes, nodes[rank])
    peers = Peers(transport, nodes, AgentDeadlines())
    seconds = asyncio.run(measure(place, peers, nbytes, schemes))
    if rank == 0:
        print(json.dumps(seconds), flush=True)
    transport.close()


BETWEEN.messages.update(
    here=message("A node has come to the barrier; `done_s`: what it has measured.", done_s=float | None),
    parity=message("What parity a node has.", answer=fields(parity=list)),
)


class Together:
    """A barrier made of the agents' own messages, so that all ranks measure the same time."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._here = [0] * len(peers.nodes)
        self._done_s = [0.0] * len(peers.nodes)
        self._come = asyncio.Condition()
        peers.serve(self)

    @serves("here")
    async def _on_here(self, source: int, done_s: float | None) -> None:
        self._here[source] += 1
        self._done_s[source] = done_s or self._done_s[source]
        async with self._come:
            self._come.notify_all()

    async def all_here(self, done_s: float = 0.0) -> float:
        """The time at which the last rank was done. Not the time of its message, which may arrive 20 ms later."""
        await self._peers.call_all("here", timeout_s=600, done_s=done_s)
        turn = self._here[self._peers.rank]
        async with self._come:  # polling would take a core from ranks that still work
            await self._come.wait_for(lambda: min(self._here) >= turn)
        return max(self._done_s)


async def measure(place: Place, peers: Peers, nbytes: int, schemes: list[str]) -> Seconds:
    together = Together(peers)
    polling = asyncio.ensure_future(peers.run())
    memory_store = MemoryStore(place.ram_dir, place.run_id, "bench")
    fill(memory_store, place, nbytes)
    seconds: Seconds = defaultdict(list)

    async def timed(name: str, part: Any) -> None:
        await together.all_here()
        since_s = time.perf_counter()
        await part
        seconds[name].append(await together.all_here(time.perf_counter()) - since_s)

    size, rank = len(place.nodes), place.node_rank
    to, source = (rank + 1 if rank == 0 else None), (0 if rank == 1 else None)
    sink = memory_store.room_for("sink", nbytes)(0, nbytes)
    for name in schemes:
        section = SCHEMES[name]
        config = CheckpointConfig.from_mapping({"namespace": "bench", "redundancy": section})
        peers._handlers.clear()  # those of the scheme before it
        peers.serve(together)
        node_disk = NodeDisk({})
        context = Context(
            place=place, config=config, deadlines=AgentDeadlines(), tiers={}, node_disk=node_disk,
            memory_store=memory_store, peers=peers,
            exchange=Exchange(peers, memory_store, node_disk),
            listener=WorkerSocket(place.socket_path, serve_nobody),
        )  # fmt: skip
        protect = ProtectNode(context, NodeSaves(context))
        peers.serve(Inventory(protect))
        for _ in range(ROUNDS):
            drop_redundancy(memory_store, protect)
            ring = sendrecv(peers, (rank + 1) % size, (rank - 1) % size, memory_store, sink)
            await timed(f"{name}, encode, raw", ring)
            await timed(f"{name}, encode", protect.make(SAVE, None))
            if rank == LOST:
                memory_store.remove("own-0-0")
            await timed(f"{name}, rebuild, raw", sendrecv(peers, to, source, memory_store, sink))
            await timed(f"{name}, rebuild", rebuild(context, section["scheme"]))
        await together.all_here()
        drop_redundancy(memory_store, protect)
        for pattern in ("copy-*", "parity-*"):
            for path in place.ram_dir.glob(pattern):
                memory_store.remove(path.stem)
    polling.cancel()
    return {name: rounds[1:] for name, rounds in seconds.items()}


class Inventory:
    """Answers which parity this node has."""

    def __init__(self, protect: ProtectNode) -> None:
        self._protect = protect

    @serves("parity")
    async def _on_parity(self, source: int) -> dict[str, Any]:
        return {"parity": self._protect.inventory(lambda save: False)}


async def serve_nobody(*_: Any) -> None:
    return None


def fill(memory_store: MemoryStore, place: Place, nbytes: int) -> None:
    data = memory_store.room_for("own-0-0", nbytes)(0, nbytes)
    noise = random.Random(place.node_rank).randbytes(1 << 20)
    for start in range(0, nbytes, len(noise)):
        data[start : start + len(noise)] = noise
    layout = Layout(chunks=(), tree={}, nbytes=nbytes)
    record = ShardRecord(
        save=SAVE, namespace="bench", rank=place.node_rank, world_size=len(place.nodes), layout=layout,
        blocks=checksums(data),
    )  # fmt: skip
    memory_store.publish("own-0-0", record)


async def sendrecv(
    peers: Peers, to: int | None, source: int | None, memory_store: MemoryStore, sink: memoryview
) -> None:
    """Plain MPI: Irecv and Isend of the whole shard, and a loop that waits for both."""
    transport = peers._transport
    pending = [transport.receive_range(source, 1, sink)] if source is not None else []
    if to is not None:
        pending.append(transport.send_range(to, 1, memory_store.bytes_of("own-0-0", len(sink))))
    while pending:
        done = transport.done(pending)
        pending = [transfer for i, transfer in enumerate(pending) if i not in done]


def drop_redundancy(memory_store: MemoryStore, protect: ProtectNode) -> None:
    """Removes the records of the redundancy. Its memory stays: all saves but the first write into existing memory."""
    for store in (memory_store, protect._parity_store):
        for name in [name for name in store.shards() if not name.startswith("own")]:
            store.drop(name)


async def rebuild(context: Context, scheme: str) -> None:
    """Rebuilds as node rank 0 does: verifies the parity, then rebuilds the lost shard."""
    world = len(context.place.nodes)
    if scheme == "partner":
        if context.place.node_rank == LOST:
            await context.exchange.pull(LOST + 1, SAVE, LOST, "own-0-0")
    elif context.place.node_rank == 0:
        lead = RebuildLeader(context)
        for node, answer in enumerate(await context.peers.call_all("parity", timeout_s=600)):
            lead.note(node, answer["parity"])
        held = Held(save=SAVE, world_size=world, holders={rank: [rank] for rank in range(world) if rank != LOST})
        made, *reasons = await lead.bring_back(held, ())
        if made != [LOST]:
            raise RuntimeError("; ".join(reasons))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) << 20, sys.argv[5].split(","))
    else:
        sys.exit(main())
