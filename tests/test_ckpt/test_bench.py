"""`holdfast ckpt bench` measures everything in one run, prints what scripts read, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_kit import BUCKET, S3Server, s3_server
from torch.distributed.checkpoint import staging
from verb_kit import ckpt

from ckpt.tiers.s3_bucket import S3Bucket
from ckpt.tiers.throttle import Throttle
from ckpt_bench.figures import Figure

S3 = ["S3 put", "S3 put, CPU of the client", "S3 get", "S3 get, CPU of the client"]
DLROVER = ["DLRover's flash checkpoint"] if importlib.util.find_spec("dlrover") else []
PEERS = {"boto3's default transfer", "s3torchconnector", "obstore"}


def leftovers() -> set[Path]:
    return set(Path("/dev/shm").glob("holdfast-bench-*"))


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("bench")
    before = leftovers()
    result = ckpt("bench", "--size-mib", "16", "--repeat", "1", str(folder), "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert leftovers() <= before and not list(folder.iterdir())
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_every_figure_stands_beside_its_peers(figures: dict[str, Any]) -> None:
    assert {name: list(figure["peer"]) for name, figure in figures.items()
            if "100 saves" not in name and not name.startswith("manifest")} == {
        "save() blocks": [
            "plain copy_ into mapped memory",
            *(["dcp.async_save, own stager"] if hasattr(staging, "DefaultStager") else []),  # torch 2.9
            "dcp.async_save, default stager", "dcp.save to /dev/shm", "torch.save to /dev/shm",
            *DLROVER,
        ],
        "first save() blocks": ["plain copy_ into new memory"],
        "load() from own memory": [
            "plain copy from mapped memory", "checksums of the same bytes", "torch.load(mmap=True) and copy",
            "torch.load and copy", "dcp.load from /dev/shm", *DLROVER,
        ],
        "flush to the nvme tier": list(figures["flush to the nvme tier"]["peer"]),
        "flush to the shared tier": list(figures["flush to the shared tier"]["peer"]),
        **{name: list(figures[name]["peer"]) for name in S3},
        **{name: list(figure["peer"]) for name, figure in figures.items() if name.endswith("nanio's server")},
    }  # fmt: skip
    assert all(set(figure) - {"missing"} == {"value", "unit", "peer", "ratio"} for figure in figures.values())
    assert all(figure["value"] > 0 for figure in figures.values())


def test_a_peer_that_is_not_there_is_named_with_the_reason(figures: dict[str, Any]) -> None:
    wanted = {
        "save() blocks": {"DLRover's flash checkpoint", "NVRx"},
        "load() from own memory": {"DLRover's flash checkpoint"},
        "flush to the nvme tier": {"fio's sequential direct write"},
        **{name: PEERS for name in S3},
    }
    for name, peers in wanted.items():
        found, missing = figures[name]["peer"], figures[name].get("missing", {})
        assert peers <= {*found, *missing}, name
        assert not {*found} & {*missing}, name
        assert "failed" not in missing.get("DLRover's flash checkpoint", ""), missing
        assert all(missing.values())


def test_the_manifest_grows_no_faster_than_the_world(figures: dict[str, Any]) -> None:
    sizes = [figures[f"manifest of {world:,} ranks x 500 tensors: size"]["value"] for world in (1024, 4096, 16384)]
    assert sizes[1] < 4.1 * sizes[0] and sizes[2] < 4.1 * sizes[1] and sizes[2] < 50  # MB; 30 are checksums


def test_100_saves_leave_no_descriptors_and_no_memory_behind(figures: dict[str, Any]) -> None:
    for name in ("worker, descriptors", "agent, descriptors", "memory directory"):
        figure = figures[f"{name} after 100 saves"]
        assert figure["value"] == figure["peer"]["before them"], name
    for name in ("worker, own memory", "agent, own memory"):
        figure = figures[f"{name} after 100 saves"]
        assert figure["value"] - figure["peer"]["before them"] < 16, name  # MiB: not even one state
    assert figures["agent, own memory after 100 saves"]["value"] < 200


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Bucket:
    """As somebody else sees it; the command finds the server in its environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return S3Bucket(BUCKET, server.options, Throttle(None))


def test_a_bucket_is_measured_beside_its_peers_and_left_as_it_was(bucket: S3Bucket) -> None:
    bucket.put("here/mine", b"x")
    arguments = ["bench", f"s3://{BUCKET}/here", "--size-mib", "48", "--repeat", "1"]  # three parts, and more
    result = ckpt(*arguments, "--json")
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert list(figures) == S3
    for figure in figures.values():
        peers = {*figure["peer"], *figure.get("missing", {})}
        assert figure["value"] > 0 and peers == PEERS
    assert bucket.keys("") == ["here/mine"] and bucket.uploads("") == []
    bucket.delete(["here/mine"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_nothing_in_the_bucket(bucket: S3Bucket, number: int) -> None:
    arguments = ["bench", f"s3://{BUCKET}/cut", "--size-mib", "64", "--repeat", "10000"]
    process = subprocess.Popen([sys.executable, "-m", "launcher", "ckpt", *arguments], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not any("step-" in key for key in bucket.keys("cut/")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    assert bucket.keys("cut/") == [] and bucket.uploads("cut/") == []


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("s3://no-such-bucket/x", "NoSuchBucket"),
        ("s3://B", "expected s3://bucket/prefix"),
        ("/no/such/directory", "expected a directory that can be written"),
    ],
)
def test_a_place_that_cannot_be_measured_is_one_line_and_exit_code_2(
    bucket: S3Bucket, where: str, message: str
) -> None:
    result = ckpt("bench", where, "--size-mib", "16", "--repeat", "1")
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1 and message in result.stderr


def test_the_ratio_is_to_the_first_peer() -> None:
    assert Figure(name="x", value=3.0, unit="s", peers={"floor": 2.0, "other": 9.0}).ratio == 1.5
    assert Figure(name="x", value=3.0, unit="s").ratio is None
