"""How soon training starts on data in a bucket, by four ways to read it: `python benchmarks/data_start.py`.

Two nodes of one rank each read one epoch of shards from a real S3 server on this machine, which is slowed to a given
rate. For each way: time to the first batch, to the end of the epoch, and the bytes that the nodes read of the bucket
beyond one copy of the data for all.

    download   every node copies all shards, then reads
    lazy       every sample is read from the bucket when it is needed
    streaming  examples/streaming: a shard is downloaded when its first sample is needed
    warm       the same, with the node's cache of the epoch before
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "examples" / "streaming"), str(ROOT / "tests" / "test_ckpt"), str(ROOT)]

from s3_kit import BUCKET, s3_server  # noqa: E402
from shards import BucketReader, ShardDataset, write_shards  # noqa: E402

from ckpt.data import ElasticSampler, batch_plan  # noqa: E402

NODES, BATCH, FLOATS = 2, 8, 16384
URL = f"s3://{BUCKET}/shards"


class Link:
    """The nodes' common way to the bucket: counts bytes, and lets them pass at a rate."""

    def __init__(self, fetch: Callable[[str], bytes], bytes_per_s: float) -> None:
        self._fetch = fetch
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.bytes = 0

    def __call__(self, name: str) -> bytes:
        content = self._fetch(name)
        with self._lock:
            self.bytes += len(content)
            self._free_at = max(self._free_at, time.monotonic()) + len(content) / self._bytes_per_s
            wait_s = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait_s))
        return content


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


def measure(way: str, link: Link, caches: list[Path], step_s: float) -> dict[str, Any]:
    """One epoch of all nodes."""
    link.bytes, began = 0, time.monotonic()

    def node(rank: int) -> tuple[float, float, list[int]]:
        if way == "lazy":
            index = json.loads(link("index.json"))
            return read_epoch(Samples([shard["samples"] for shard in index], link), rank, began, step_s)
        dataset = ShardDataset(URL, link, caches[rank], 1 << 40)
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
        shards = [stream.random((64, FLOATS), np.float32) for _ in range(given.shards)]
        write_shards(shards, folder)
        for index, sample in enumerate(np.concatenate(shards)):
            (folder / f"sample-{index:06d}").write_bytes(sample.tobytes())
        data_bytes = sum(path.stat().st_size for path in folder.glob("*.npy"))
        rows = []
        with s3_server(Path(root, "s3")) as server:
            reader = BucketReader(URL, "us-east-1", server.endpoint_url)
            reader.hold([path.name for path in folder.iterdir()])
            link = Link(reader, given.mib_per_s * 2**20)
            for way in ("download", "lazy", "streaming", "warm"):
                named = "streaming" if way == "warm" else way
                caches = [Path(root, named, str(node)) for node in range(NODES)]
                rows.append(measure(way, link, caches, given.step_s))
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
