"""litData's chunks in a bucket under an ElasticSampler: a fault and another world size repeat and lose no sample."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from disturbed import HERE, broken, ends, samples
from s3_kit import BUCKET, KEY, SECRET, S3Server, s3_server

SCRIPT = "litdata_script.py"
KILLED, LOST = "0:1:5:3:die", "1:1:10:9:wait"

pytestmark = pytest.mark.long(seconds=30)


@pytest.fixture
def bucket(tmp_path: Path, frameworks: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """A server with the chunks."""
    frameworks("litdata")
    monkeypatch.setenv("LITDATA_DISABLE_VERSION_CHECK", "1")
    argv = [sys.executable, str(HERE / SCRIPT), str(tmp_path / "s3" / BUCKET / "chunks")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False)
    assert "got shuffle, seed: the order of the samples is that of the ElasticSampler" in done.stdout, done.stderr
    with s3_server(tmp_path / "s3") as server:
        yield server


def test_a_killed_worker_and_a_lost_node_without_a_spare_leave_every_sample_once(
    tmp_path: Path, bucket: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node has a cache of its own. No key is in the job's folder."""
    keys = tmp_path / "credentials"
    keys.write_text(f"[training]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "cache"))
    env = {
        "URL": f"s3://{BUCKET}/chunks", "AWS_ENDPOINT_URL_S3": bucket.endpoint_url, "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_SHARED_CREDENTIALS_FILE": str(keys), "AWS_PROFILE": "training",
    }  # fmt: skip
    elastic = {"min_nodes": 1, "scaling_timeout_s": 1}
    out = broken(SCRIPT, tmp_path, KILLED, LOST, env=env, spares=0, elastic=elastic, preload=["litdata"])
    seen = samples(out)
    for epoch in (range(12), range(12, 24)):
        assert sorted(sample for step in epoch for sample in seen[step]) == list(range(96))
    assert ends(out) == [{"step": 24, "ranks": 1}]
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"node0", "node1"}
    texts = (path.read_text(errors="replace") for path in tmp_path.rglob("log/**/*") if path.is_file())
    assert not any(SECRET in text for text in texts)
