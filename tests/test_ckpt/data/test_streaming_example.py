"""examples/streaming on a real S3 server: one download a shard and node, a limit, and every sample once."""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from s3_kit import BUCKET, KEY, SECRET, S3Server, s3_server

from ckpt.data import ElasticSampler, batch_plan

pytest.importorskip("s3torchconnector", reason="s3torchconnector is not installed: pip install s3torchconnector")
ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "streaming"
sys.path.insert(0, str(EXAMPLE))
from shards import BucketReader, ShardDataset, write_shards  # noqa: E402

SHARDS, LENGTH = 5, 12
URL = f"s3://{BUCKET}/shards"
SHARD_BYTES = 128 + LENGTH * 16 * 4  # with the header of .npy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3")
    stream = np.random.default_rng(0)
    shards = (stream.random((LENGTH, 16), np.float32) for _ in range(SHARDS))
    write_shards(shards, root / BUCKET / "shards")
    with s3_server(root) as running:
        yield running


def _dataset(server: S3Server, cache: Path, fetched: list[str], limit_bytes: int = 1 << 30) -> ShardDataset:
    read = BucketReader(URL, "us-east-1", server.endpoint_url)

    def fetch(name: str) -> bytes:
        fetched.append(name)
        return read(name)

    return ShardDataset(URL, fetch, cache, limit_bytes)


def _samples(dataset: ShardDataset) -> list[int]:
    plan = batch_plan(4, 1, env={})
    return [dataset[index][0] for index in ElasticSampler(dataset, plan, seed=3, shards=dataset.shards, env={})]


def test_an_epoch_downloads_each_shard_once_and_the_next_job_none(server: S3Server, tmp_path: Path) -> None:
    fetched: list[str] = []
    assert sorted(_samples(_dataset(server, tmp_path, fetched))) == list(range(SHARDS * LENGTH))
    assert Counter(fetched) == Counter(["index.json", *(f"{number:06d}.npy" for number in range(SHARDS))])
    fetched.clear()
    _samples(_dataset(server, tmp_path, fetched))
    assert fetched == ["index.json"]


def test_the_first_sample_needs_one_shard(server: S3Server, tmp_path: Path) -> None:
    fetched: list[str] = []
    dataset = _dataset(server, tmp_path, fetched)
    index, sample = dataset[13]
    assert fetched == ["index.json", "000001.npy"] and index == 13 and sample.shape == (16,)


def test_the_cache_keeps_to_its_limit_and_an_epoch_still_downloads_each_shard_once(
    server: S3Server, tmp_path: Path
) -> None:
    fetched: list[str] = []
    _samples(_dataset(server, tmp_path, fetched, limit_bytes=2 * SHARD_BYTES))
    assert len(fetched) == 1 + SHARDS
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.npy")) <= 2 * SHARD_BYTES


def test_ranks_of_a_node_share_one_download(server: S3Server, tmp_path: Path) -> None:
    fetched: list[str] = []
    ranks = [_dataset(server, tmp_path, fetched) for _ in range(4)]
    threads = [threading.Thread(target=_samples, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(fetched) - Counter({"index.json": 4}) == Counter(f"{number:06d}.npy" for number in range(SHARDS))


def _read_all(cache: Path, endpoint: str) -> None:
    read = BucketReader(URL, "us-east-1", endpoint)
    _samples(ShardDataset(URL, read, cache, 1 << 30))


def test_a_reader_that_is_killed_leaves_nothing_that_a_later_one_would_take_for_a_shard(
    server: S3Server, tmp_path: Path
) -> None:
    dataset = _dataset(server, tmp_path, [])
    folder = next(tmp_path.iterdir())
    (folder / ".abc.part").write_bytes(b"half of a shard")
    holder = multiprocessing.get_context("spawn").Process(target=_read_all, args=(tmp_path, server.endpoint_url))
    holder.start()
    while not list(folder.glob("*.npy")) and holder.is_alive():
        os.sched_yield()
    holder.kill()
    holder.join()
    assert sorted(_samples(dataset)) == list(range(SHARDS * LENGTH))


@pytest.mark.long(seconds=20)
def test_a_job_that_loses_a_node_sees_every_sample_once_and_each_node_has_a_cache_of_its_own(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher import Executor, JobSpec
    from launcher.clusters.local.cluster import kill_node

    sys.path.insert(0, str(ROOT / "tests" / "flows"))
    from main_job import Watch

    steps = SHARDS * LENGTH * 2 // 8  # two epochs
    keys = tmp_path / "credentials"  # no key is in the job file, and so none in the job's folder
    keys.write_text(f"[training]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "cache"))
    environment = {
        "AWS_ENDPOINT_URL_S3": server.endpoint_url,
        "SEEN": str(tmp_path / "seen"), "PACE_S": "0.2",
        "AWS_SHARED_CREDENTIALS_FILE": str(keys), "AWS_PROFILE": "training",
    }  # fmt: skip
    spec = JobSpec.from_mapping(
        {
            "name": "streaming", "script": str(EXAMPLE / "train.py"), "args": [URL, str(steps)], "nodes": 2,
            "spares": 1, "workers_per_node": 1, "env": environment,
            "checkpoint": {"namespace": "s", "memory": {"every_steps": 2}, "redundancy": {"scheme": "partner"}},
        },
        tmp_path,
    )  # fmt: skip
    job = Executor(folder=tmp_path / "%j", cluster="local").submit(spec)
    watch = Watch(job.paths.folder)
    watch.wait_for("commit", 90, tier="memory", step=lambda step: step >= 4)
    kill_node(watch.job_dir, "node1")
    assert job.result()["name"] == "done", watch.story()
    assert len(watch.events("attempt_start")) == 2
    seen: dict[int, list[int]] = {}
    for rank in range(2):
        last = {}
        for line in (tmp_path / f"seen-{rank}").read_text().splitlines():
            step, *ids = map(int, re.findall(r"\d+", line))
            last[step] = ids
        for step, ids in last.items():
            seen.setdefault(step, []).extend(ids)
    assert sorted(seen) == list(range(1, steps + 1))
    assert Counter(sample for ids in seen.values() for sample in ids) == Counter(
        dict.fromkeys(range(SHARDS * LENGTH), 2)
    )
    assert not any(SECRET in path.read_text(errors="replace") for path in job.paths.folder.rglob("*") if path.is_file())
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"node0", "node1", "node2"}
