"""Samples in shards in a bucket, read through a cache on the node's own disk.

A shard is a .npy file of samples [n, ...]. index.json has their names and lengths. `ShardDataset` is map-style: an
ElasticSampler decides who reads which sample, so a job continues at any world size, and `shards=dataset.shards` makes
its order run through the shards one after the other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from s3torchconnector import S3ClientConfig, S3MapDataset

Fetch = Callable[[str], bytes]  # an object's name below the prefix -> its content


class BucketReader:
    """Reads objects below s3://bucket/prefix. Keys come from where AWS's tools find them: a role, or a profile."""

    def __init__(self, url: str, region: str, endpoint: str | None = None) -> None:
        """Connects to nothing yet.

        Args:
            url: s3://bucket/prefix.
            region: AWS's region.
            endpoint: URL of an S3 server that is not AWS.
        """
        self._url = url.rstrip("/")
        self._options: dict[str, Any] = {
            "region": region,
            "endpoint": endpoint,
            "s3client_config": S3ClientConfig(force_path_style=endpoint is not None),
        }
        self._places: dict[str, int] = {}
        self._objects: Any = None

    def hold(self, names: Sequence[str]) -> None:
        """Names the objects that are read from now on. They share one client, which is expensive to make."""
        self._places = {name: place for place, name in enumerate(names)}
        self._objects = S3MapDataset.from_objects([f"{self._url}/{name}" for name in names], **self._options)

    def __call__(self, name: str) -> bytes:
        """The object's content."""
        if name not in self._places:
            self.hold([name])
        return self._objects[self._places[name]].read()


class ShardCache:
    """Whole shards in a directory that the ranks of a node and the next job share.

    A shard is downloaded once on a node: a lock file is held for the download, and the file appears by a rename. When
    the limit is reached, the shards used least recently are removed; a process that has one open keeps it until it
    closes it.
    """

    def __init__(self, directory: Path, limit_bytes: int, fetch: Fetch) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._fetch = fetch
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def path(self, name: str) -> Path:
        """The shard's file, downloaded if it is not there."""
        path = self._directory / name
        with open(self._directory / f".{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self._download(name, path)
            os.utime(path)  # the time of the last use
            return path

    def load(self, name: str) -> np.ndarray:
        """The shard's samples, mapped. Read again if another rank removed the file before it was opened."""
        while True:
            try:
                return np.load(self.path(name), mmap_mode="r")
            except FileNotFoundError:
                continue

    def _download(self, name: str, path: Path) -> None:
        content = self._fetch(name)
        self._make_room(len(content))
        descriptor, draft = tempfile.mkstemp(prefix=".", suffix=".part", dir=self._directory)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.rename(draft, path)

    def _make_room(self, needed_bytes: int) -> None:
        found = []
        for path in self._directory.glob("*.npy"):
            try:
                found.append((path.stat().st_mtime, path.stat().st_size, path))
            except FileNotFoundError:  # another rank removed it
                continue
        used = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if used + needed_bytes <= self._limit_bytes:
                return
            path.unlink(missing_ok=True)
            used -= size


class ShardDataset:
    """The samples of all shards, as a map-style dataset of (index, sample)."""

    def __init__(self, url: str, fetch: Fetch, cache_dir: Path, limit_bytes: int) -> None:
        """Reads index.json.

        Args:
            url: where the shards are; names their directory in the cache, so that two data sets do not mix.
            fetch: reads an object.
            cache_dir: the node's cache: HOLDFAST_CACHE_DIR.
            limit_bytes: the most that this data set may take of it.
        """
        index = json.loads(fetch("index.json"))
        self.names = [shard["name"] for shard in index]
        self.shards = [shard["samples"] for shard in index]
        self._ends = list(accumulate(self.shards))
        folder = hashlib.sha256(url.encode() + json.dumps(index).encode()).hexdigest()[:16]
        self._cache = ShardCache(cache_dir / folder, limit_bytes, fetch)
        self._open: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
        shard = bisect_right(self._ends, index)
        if self._open is None or self._open[0] != shard:
            self._open = shard, self._cache.load(self.names[shard])
        begin = self._ends[shard] - self.shards[shard]
        return index, np.array(self._open[1][index - begin])


def write_shards(samples: Iterable[np.ndarray], folder: Path) -> None:
    """Writes shards and index.json into a directory, to be copied to a bucket."""
    folder.mkdir(parents=True, exist_ok=True)
    index = []
    for number, shard in enumerate(samples):
        np.save(folder / f"{number:06d}.npy", shard)
        index.append({"name": f"{number:06d}.npy", "samples": len(shard)})
    (folder / "index.json").write_text(json.dumps(index))
