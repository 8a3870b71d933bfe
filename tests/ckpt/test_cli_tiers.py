"""holdfast ckpt ls and verify over s3:// URLs and nodes' own disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_kit import S3Server, s3_server
from test_cli_ckpt import facts, run
from tier_kit import Stored, path_of, save_id, stored

from ckpt.tiers.nvme import NvmeTier


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    place = stored("s3", tmp_path, server)
    place.commit(save_id(3))
    place.commit(save_id(4, attempt=1))
    place.write(save_id(5))
    return place


@pytest.mark.parametrize("below", [True, False])
def test_a_bucket_is_listed_by_its_prefix_or_its_namespace(bucket: Stored, below: bool) -> None:
    url = bucket.tier.url if below else bucket.tier.url.rpartition("/")[0]  # type: ignore[attr-defined]
    rows = facts("ls", url)
    assert [(row["step"], row["committed"], row["world_size"], row["tier"]) for row in rows] == [
        (5, False, None, "s3"),
        (4, True, 4, "s3"),
        (3, True, 4, "s3"),
    ]
    assert rows[1]["bytes"] == 20_000 and rows[1]["namespace"] == "ns"
    assert run("verify", url).exit_code == 0


def test_verify_reads_every_byte_of_a_bucket(bucket: Stored) -> None:
    url = bucket.tier.url  # type: ignore[attr-defined]
    file = path_of(save_id(3), "node-00001.data")
    bucket.put(file, b"\xff" + bucket.get(file)[1:])
    result = run("verify", url)
    assert result.exit_code == 1
    parent = url.rpartition("/")[0]
    assert f"BAD rank 2 in {parent}/{file}: 1 of 1 blocks do not match, first block 0" in result.stdout
    assert run("verify", url, "--step", "4").exit_code == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/nothing-there", "no namespace there"),
        ("s3://no-such-bucket/x", "NoSuchBucket"),
        ("s3://B", "expected s3://bucket/prefix"),
    ],
)
def test_a_url_that_is_not_ours_is_a_usage_error_in_one_line(bucket: Stored, url: str, message: str) -> None:
    result = run("ls", url)
    assert result.exit_code == 2 and result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert message in result.stderr


@pytest.mark.parametrize("below", ["", "n1", "n1/ns"])
def test_a_nodes_disk_is_listed_and_verified_and_whether_a_step_is_whole_is_not_for_it_to_say(
    tmp_path: Path, server: S3Server, below: str
) -> None:
    place = stored("nvme", tmp_path, server)
    place.commit(save_id(3))
    place.write(save_id(4))
    rows = facts("ls", tmp_path / below)
    assert [(row["step"], row["committed"], row["shards"], row["tier"]) for row in rows] == [
        (4, False, 0, "nvme"),
        (3, None, 2, "nvme"),
    ]
    assert run("verify", tmp_path / below).exit_code == 0
    file = NvmeTier(tmp_path, "ns", node="n1").data_path(save_id(3), "node-00000.data")
    file.write_bytes(b"\xff" + file.read_bytes()[1:])
    result = run("verify", tmp_path / below)
    assert result.exit_code == 1 and f"BAD rank 0 in {file}" in result.stdout
