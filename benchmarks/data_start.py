"""How soon training starts on data in a bucket, by five ways to read it: `python benchmarks/data_start.py`.

Two nodes of one rank each read one epoch of shards from a real S3 server on this machine, through a proxy that lets the
bytes pass at a given rate. For each way: time to the first batch, to the end of the epoch, and the bytes that the nodes
read of the bucket beyond one copy of the data for all.

    download   every node copies all shards, then reads
    lazy       every sample is read from the bucket when it is needed
    streaming  examples/streaming: a shard is downloaded when its first sample is needed
    warm       the same, with the node's cache of the epoch before
    litdata    litData's chunks of the same length by `ChunkDataset`; `make frameworks` installs litData
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import socketserver
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples" / "streaming"), str(ROOT / "tests" / "test_ckpt"), str(ROOT)]
sys.path.append(str(Path(sys.prefix, "frameworks")))  # last: it has other versions of what other packages need
os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"

from s3_kit import BUCKET, s3_server  # noqa: E402
from shards import BucketReader, ShardDataset, write_shards  # noqa: E402

from ckpt.data import ElasticSampler, batch_plan  # noqa: E402

NODES, BATCH, FLOATS, LENGTH = 2, 8, 16384, 64
URL, CHUNKS_URL = f"s3://{BUCKET}/shards", f"s3://{BUCKET}/chunks"


class Link(socketserver.ThreadingTCPServer):
    """The nodes' common way to the bucket: counts the bytes to the nodes, and lets them pass at a rate."""

    daemon_threads = True

    def __init__(self, server_port: int, bytes_per_s: float) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.server_port = server_port
        self.endpoint_url = f"http://127.0.0.1:{self.server_address[1]}"
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.bytes = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def let_pass(self, count: int) -> None:
        with self._lock:
            self.bytes += count
            self._free_at = max(self._free_at, time.monotonic()) + count / self._bytes_per_s
            wait_s = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait_s))


class _Connection(socketserver.BaseRequestHandler):
    server: Link

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server.server_port)) as to_server:
            threading.Thread(target=self._copy_requests, args=[to_server], daemon=True).start()
            with suppress(ConnectionError):
                while content := to_server.recv(1 << 16):
                    self.server.let_pass(len(content))
                    self.request.sendall(content)

    def _copy_requests(self, to_server: socket.socket) -> None:
        with suppress(OSError):  # either end has closed the connection
            while content := self.request.recv(1 << 16):
                to_server.sendall(content)
            to_server.shutdown(socket.SHUT_WR)


class Samples:
    """The samples as one object each, for the lazy way."""

    def __init__(self, shards: list[int], fetch: Callable[[str], bytes]) -> None:
        self.shards = shards
        self._fetch = fetch

    def __len__(self) -> int:
        return sum(self.shards)

    def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
        return index, np.frombuffer(self._fetch(f"sample-{index:06d}"), np.float32)


def read_epoch(dataset: Any, rank: int, began: float, step_s: float) -> tuple[float, float, list[int]]:
    """Seconds to the first batch and to the end, and the samples' indices, with a step of some seconds a batch."""
    plan = batch_plan(BATCH, NODES, env={})
    sampler = ElasticSampler(dataset, plan, rank=rank, seed=1, shards=dataset.shards, tail="pad")
    first_s, seen = 0.0, []
    for position, index in enumerate(sampler):
        seen.append(dataset[index][0])
        if (position + 1) % plan.rank_batch == 0:
            first_s = first_s or time.monotonic() - began
            time.sleep(step_s)
    return first_s, time.monotonic() - began, seen


def write_chunks(samples: Iterable[np.ndarray], folder: Path) -> None:
    """The samples in litData's chunks."""
    from litdata.streaming import Cache

    cache = Cache(str(folder), chunk_size=LENGTH)
    for index, sample in enumerate(samples):
        cache[index] = {"index": index, "sample": sample}
    cache.done()
    cache.merge()


def chunk_dataset(cache: Path, endpoint_url: str) -> Any:
    """litData's dataset by index, whose server has no TLS here."""
    from litdata.streaming import downloader

    from holdfast.adapters.litdata import ChunkDataset

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    where = {"endpoint_url": endpoint_url, "region_name": "us-east-1"}
    return ChunkDataset(
        CHUNKS_URL, cache, storage_options=where, transform=lambda item: (item["index"], item["sample"])
    )


def measure(way: str, link: Link, fetch: Callable[[str], bytes], caches: list[Path], step_s: float) -> dict[str, Any]:
    """One epoch of all nodes."""
    link.bytes, began = 0, time.monotonic()

    def node(rank: int) -> tuple[float, float, list[int]]:
        if way == "lazy":
            index = json.loads(fetch("index.json"))
            return read_epoch(Samples([shard["samples"] for shard in index], fetch), rank, began, step_s)
        if way == "litdata":
            return read_epoch(chunk_dataset(caches[rank], link.endpoint_url), rank, began, step_s)
        dataset = ShardDataset(URL, fetch, caches[rank], 1 << 40)
        if way == "download":
            begin = 0
            for length in dataset.shards:
                dataset[begin]
                begin += length
        return read_epoch(dataset, rank, began, step_s)

    with ThreadPoolExecutor(NODES) as pool:
        found = list(pool.map(node, range(NODES)))
    seen = sorted(sample for _, _, samples in found for sample in samples)
    return {
        "way": way,
        "first_batch_s": max(first for first, _, _ in found),
        "epoch_s": max(end for _, end, _ in found),
        "read_bytes": link.bytes,
        "is_whole": seen == list(range(len(seen))),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--shards", type=int, default=16, help="number of shards (64 samples of 64 KiB each)")
    options.add_argument("--mib-per-s", type=float, default=32, help="rate of the link to the bucket")
    options.add_argument("--step-s", type=float, default=0.02, help="seconds of a training step")
    options.add_argument("--json", action="store_true", help="print JSON")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "s3", BUCKET, "shards")
        stream = np.random.default_rng(0)
        shards = [stream.random((LENGTH, FLOATS), np.float32) for _ in range(given.shards)]
        write_shards(shards, folder)
        for index, sample in enumerate(np.concatenate(shards)):
            (folder / f"sample-{index:06d}").write_bytes(sample.tobytes())
        data_bytes = sum(path.stat().st_size for path in folder.glob("*.npy"))
        ways, rows = ["download", "lazy", "streaming", "warm"], []
        if importlib.util.find_spec("litdata"):
            write_chunks(np.concatenate(shards), Path(root, "s3", BUCKET, "chunks"))
            ways.append("litdata")
        with s3_server(Path(root, "s3")) as server, Link(server.port, given.mib_per_s * 2**20) as link:
            reader = BucketReader(URL, "us-east-1", link.endpoint_url)
            reader.hold([path.name for path in folder.iterdir()])
            for way in ways:
                named = "streaming" if way == "warm" else way
                caches = [Path(root, named, str(node)) for node in range(NODES)]
                rows.append(measure(way, link, reader, caches, given.step_s))
            link.shutdown()
    if given.json:
        print(json.dumps({"cpus": os.cpu_count(), "data_bytes": data_bytes, "rows": rows}, indent=2))
        return
    print(f"{data_bytes / 2**20:.0f} MiB in {given.shards} shards, {NODES} nodes, {given.mib_per_s:g} MiB/s for both")
    print(f"{'way':<10} {'first batch':>12} {'epoch':>9} {'read':>9} {'read twice':>11}")
    for row in rows:
        if not row["is_whole"]:
            raise SystemExit(f"data_start: {row['way']}: got other samples than one epoch of the data")
        twice = max(0, row["read_bytes"] - data_bytes) / 2**20
        print(
            f"{row['way']:<10} {row['first_batch_s']:>10.2f} s {row['epoch_s']:>7.2f} s "
            f"{row['read_bytes'] / 2**20:>5.0f} MiB {twice:>7.0f} MiB"
        )


if __name__ == "__main__":
    main()
