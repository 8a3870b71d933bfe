"""Encode and rebuild rates of every scheme over real agents, beside a raw MPI Sendrecv of the same bytes.

    python benchmarks/redundancy.py [--json] [--ranks 8] [--mib 256] [--tcp]

One agent process per rank under one mpirun on this machine, each with its own memory directory; all in one redundancy
set. GB/s are of all ranks' shards together, as redset's figures are: encode from the call for redundancy to the last
record on disk, checksums included; rebuild of one lost rank counts that rank's bytes. Shared memory between the
processes as redset's runs had; --tcp instead moves the bytes as agents on one machine do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ckpt.agent.context import Context
from ckpt.agent.deadlines import Deadlines
from ckpt.agent.exchange import Exchange
from ckpt.agent.holdings import Holdings
from ckpt.agent.launch import environment
from ckpt.agent.listener import Listener
from ckpt.agent.peers import Peers
from ckpt.agent.rebuilding import Rebuilding
from ckpt.agent.saves import Saves
from ckpt.agent.shelf import Shelf
from ckpt.config import CheckpointConfig, Place
from ckpt.record.blocks import checksums
from ckpt.record.layout import Layout
from ckpt.record.shard import SaveId, ShardRecord
from ckpt.transport import MpiTransport

SCHEMES: dict[str, dict[str, Any]] = {
    "partner": {"scheme": "partner"},
    "XOR": {"scheme": "xor"},
    "RS 1": {"scheme": "rs", "parity": 1},
    "RS 2": {"scheme": "rs", "parity": 2},
}
REDSET_MB_PER_S = {  # FIELD: redset (C), 8 ranks x 256 MB in /dev/shm, 2 cores
    "partner": (1757, 474), "XOR": (3120, 350), "RS 1": (1422, 132), "RS 2": (652, 167),
}  # fmt: skip
LOST = 1
ROUNDS = 3  # the best of them counts, for the raw Sendrecv too
SAVE = SaveId(step=1, attempt=0, run_id="bench")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print {name: {value, unit, peer, ratio}}")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--mib", type=int, default=256, help="of each rank's shard")
    parser.add_argument("--tcp", action="store_true", help="no shared memory between the processes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as root:
        mpi = environment(loopback=True)
        if not args.tcp:
            for name in [name for name in mpi if name.startswith("OMPI_MCA")]:
                del mpi[name]
            mpi |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm", "OMPI_MCA_btl_sm_backing_directory": "/dev/shm"}
        worker = [sys.executable, __file__, "--worker", root, str(args.ranks), str(args.mib)]
        mpirun = [
            str(Path(sys.executable).with_name("mpirun")),
            "--oversubscribe",
            "--bind-to",
            "none",
            "-n",
            str(args.ranks),
        ]
        path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*mpirun, *worker], env={**os.environ, **mpi, "PYTHONPATH": path}, check=False, text=True,
            stdout=subprocess.PIPE,
        )  # fmt: skip
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        return 1
    seconds = json.loads(done.stdout.splitlines()[-1])
    report(seconds, args.ranks, args.mib << 20, args.json)
    return 0


def report(seconds: dict[str, float], ranks: int, nbytes: int, as_json: bool) -> None:
    raw = ranks * nbytes / seconds["Sendrecv"] / 1e9
    one = nbytes / seconds["Sendrecv, one rank"] / 1e9
    rows: dict[str, dict[str, Any]] = {}
    for name, (encode, rebuild) in REDSET_MB_PER_S.items():
        for kind, moved, peer, redset in (("encode", ranks * nbytes, raw, encode), ("rebuild", nbytes, one, rebuild)):
            value = moved / seconds[f"{name}, {kind}"] / 1e9
            peers = {"Sendrecv": round(peer, 3), "redset": redset / 1000}
            rows[f"{name} {kind}"] = {"value": round(value, 3), "unit": "GB/s", "peer": peers, "ratio": value / peer}
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("", "GB/s", "raw Sendrecv", "ratio", "redset (FIELD)", title=f"{ranks} ranks x {nbytes >> 20} MiB")
    for name, row in rows.items():
        peer = row["peer"]
        table.add_row(
            name, *(f"{value:.2f}" for value in (row["value"], peer["Sendrecv"], row["ratio"], peer["redset"]))
        )
    Console().print(table)


def work(root: Path, ranks: int, nbytes: int) -> None:
    """One process of the world: measures everything, rank 0 prints."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    nodes = tuple(f"n{i}" for i in range(ranks))
    place = Place(
        run_id=SAVE.run_id, attempt=0, node=nodes[rank], nodes=nodes, ranks_per_node=1, ram_dir=root / nodes[rank]
    )
    place.ram_dir.mkdir(mode=0o700)
    transport = MpiTransport(nodes, nodes[rank])
    peers = Peers(transport, nodes)
    seconds = asyncio.run(measure(place, peers, nbytes))
    if rank == 0:
        print(json.dumps(seconds), flush=True)
    transport.close()


class Together:
    """A barrier over the agents' own calls, so that all ranks measure the same span."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._here = [0] * len(peers.nodes)
        self._come = asyncio.Condition()
        peers.handle("here", self._on_here)

    async def _on_here(self, source: int, message: dict[str, Any]) -> None:
        self._here[source] += 1
        async with self._come:
            self._come.notify_all()

    async def all_here(self) -> None:
        await self._peers.call_all("here", timeout_s=600)
        turn = self._here[self._peers.rank]
        async with self._come:  # no poll of its own: it would take a core from those that still work
            await self._come.wait_for(lambda: min(self._here) >= turn)


async def measure(place: Place, peers: Peers, nbytes: int) -> dict[str, float]:
    together = Together(peers)
    polling = asyncio.ensure_future(peers.run())
    holdings = Holdings(place.ram_dir, place.run_id, "bench")
    fill(holdings, place, nbytes)
    seconds: dict[str, float] = {}

    async def timed(name: str, part: Any) -> None:
        await together.all_here()
        since_s = time.perf_counter()
        await part
        await together.all_here()
        seconds[name] = min(seconds.get(name, math.inf), time.perf_counter() - since_s)

    size, rank = len(place.nodes), place.node_rank
    sink = holdings.room_for("sink", nbytes)
    to, source = (rank + 1 if rank == 0 else None), (0 if rank == 1 else None)
    for _ in range(ROUNDS):
        await timed("Sendrecv", sendrecv(peers, (rank + 1) % size, (rank - 1) % size, holdings, sink))
        await timed("Sendrecv, one rank", sendrecv(peers, to, source, holdings, sink))
    holdings.remove("sink")
    for name, section in SCHEMES.items():
        config = CheckpointConfig.from_mapping({"namespace": "bench", "peers": section})
        shelf = Shelf({})
        context = Context(
            place=place, config=config, deadlines=Deadlines(), tiers={}, shelf=shelf, holdings=holdings, peers=peers,
            exchange=Exchange(peers, holdings, shelf, Deadlines()),
            listener=Listener(place.socket_path, serve_nobody),
        )  # fmt: skip
        saves = Saves(context)
        peers.handle("parity", inventory_of(saves))
        for _ in range(ROUNDS):
            drop_redundancy(holdings, saves)
            await timed(f"{name}, encode", saves._redundancy(SAVE, None))
            if rank == LOST:
                holdings.remove("own-0-0")
            await timed(f"{name}, rebuild", rebuild(context, saves, section["scheme"]))
        await together.all_here()
        drop_redundancy(holdings, saves)
        for pattern in ("copy-*", "parity-*"):
            for path in place.ram_dir.glob(pattern):
                holdings.remove(path.stem)
    polling.cancel()
    return seconds


def inventory_of(saves: Saves) -> Any:
    async def answer(source: int, message: dict[str, Any]) -> dict[str, Any]:
        return {"parity": saves.parities.inventory(lambda save: False)}

    return answer


async def serve_nobody(*_: Any) -> None:
    return None


def fill(holdings: Holdings, place: Place, nbytes: int) -> None:
    data = holdings.room_for("own-0-0", nbytes)
    noise = random.Random(place.node_rank).randbytes(1 << 20)
    for start in range(0, nbytes, len(noise)):
        data[start : start + len(noise)] = noise
    layout = Layout(chunks=(), tree={}, nbytes=nbytes)
    record = ShardRecord(
        save=SAVE, namespace="bench", rank=place.node_rank, world_size=len(place.nodes), layout=layout,
        blocks=checksums(data),
    )  # fmt: skip
    holdings.publish("own-0-0", record)


async def sendrecv(peers: Peers, to: int | None, source: int | None, holdings: Holdings, sink: memoryview) -> None:
    """MPI alone: Irecv and Isend of the whole shard at once, waited for in a loop that does nothing else."""
    transport = peers._transport
    pending = [transport.receive_range(source, 1, sink)] if source is not None else []
    if to is not None:
        pending.append(transport.send_range(to, 1, holdings.bytes_of("own-0-0", len(sink))))
    while pending:
        done = transport.done(pending)
        pending = [transfer for i, transfer in enumerate(pending) if i not in done]


def drop_redundancy(holdings: Holdings, saves: Saves) -> None:
    """Its records: the next round writes into memory that is there already, as all saves but the first do."""
    for store in (holdings, saves.parities._holdings):
        for name in [name for name in store.shards() if not name.startswith("own")]:
            store.drop(name)


async def rebuild(context: Context, saves: Saves, scheme: str) -> None:
    """As node rank 0 leads it: verify the parity, then make the lost shard again."""
    world = len(context.place.nodes)
    if scheme == "partner":
        if context.place.node_rank == LOST:
            await context.exchange.pull(LOST + 1, SAVE, LOST, "own-0-0")
    elif context.place.node_rank == 0:
        lead = Rebuilding(context)
        for node, answer in enumerate(await context.peers.call_all("parity", timeout_s=600)):
            lead.note(node, answer["parity"])
        made, *reasons = await lead.bring_back(SAVE, world, {rank: [rank] for rank in range(world) if rank != LOST}, ())
        if made != [LOST]:
            raise RuntimeError("; ".join(reasons))


if __name__ == "__main__":
    if "--worker" in sys.argv:
        work(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) << 20)
    else:
        sys.exit(main())
