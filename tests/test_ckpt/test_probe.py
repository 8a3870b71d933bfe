"""`holdfast doctor` tries a job's bucket with one object, and leaves none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_kit import BUCKET, S3Server, s3_server

from ckpt.cli.app import probe_bucket
from ckpt.config import CheckpointConfig
from ckpt.errors import CheckpointError


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as server:
        yield server


def config(s3: S3Server, **changes: object) -> CheckpointConfig:
    section = {"namespace": "gpt", "memory": {"every_steps": 1}, "s3": {**s3.section("probed"), **changes}}
    return CheckpointConfig.from_mapping(section, "test")


def test_a_bucket_that_takes_gives_and_deletes_is_left_as_it_was(s3: S3Server) -> None:
    probe_bucket(config(s3))
    assert not [path for path in (Path(s3.root) / BUCKET).rglob("*") if "holdfast-doctor" in path.name]


def test_a_bucket_that_is_not_there_is_an_error(s3: S3Server) -> None:
    with pytest.raises((OSError, CheckpointError), match="no-such-bucket"):
        probe_bucket(config(s3, url="s3://no-such-bucket/x"))
