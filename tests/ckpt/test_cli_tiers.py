"""holdfast ckpt ls and verify over s3:// URLs and nodes' own disks."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from s3_kit import S3Server, s3_server
from test_cli_ckpt import facts, run
from tier_kit import Stored, path_of, save_id, stored

from ckpt.progress import Bar
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier


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


def test_copies_go_from_a_bucket_to_a_directory_and_back(bucket: Stored, server: S3Server, tmp_path: Path) -> None:
    there, back = SharedTier(tmp_path / "there", "ns"), server.fresh_url()
    assert run("copy", bucket.tier.where, there.path).exit_code == 0
    assert there.steps() == bucket.tier.steps() and run("verify", there.path).exit_code == 0
    result = run("copy", there.path, back, "--step", "3")
    assert result.exit_code == 0 and f"step 3: copied to {back}/ns" in result.stdout
    assert run("verify", back).exit_code == 0 and "already in" in run("copy", there.path, back, "--step", "3").stdout


def test_a_damaged_step_is_never_copied_out_of_a_bucket(bucket: Stored, tmp_path: Path) -> None:
    file = path_of(save_id(3), "node-00001.data")
    bucket.put(file, b"\xff" + bucket.get(file)[1:])
    result = run("copy", bucket.tier.where, tmp_path / "there", "--step", "3")
    assert result.exit_code == 1 and "node-00001.data: block 0 of rank 2 does not match" in result.stderr
    assert SharedTier(tmp_path / "there", "ns").steps() == []


def test_gc_keeps_the_newest_of_a_bucket(bucket: Stored) -> None:
    result = run("gc", bucket.tier.where, "--keep", "1")
    assert result.exit_code == 0 and "1 steps, 20.0 kB freed" in result.stdout
    assert [save.step for save in bucket.tier.steps()] == [4]


def test_a_bad_step_of_a_bucket_is_set_aside_whole_with_the_reason(bucket: Stored) -> None:
    for number in ("", ".2"):
        file = path_of(save_id(3), "node-00001.data")
        bucket.put(file, b"\xff" + bucket.get(file)[1:])
        aside = f"bad-{directory_name(save_id(3))}{number}"
        result = run("verify", bucket.tier.where, "--quarantine")
        assert result.exit_code == 1 and f"set aside as {bucket.tier.where}/{aside}" in result.stdout
        assert [save.step for save in bucket.tier.steps()] == [4]
        assert bucket.get(f"ns/{aside}/node-00001.data")[:1] == b"\xff" and bucket.get(f"ns/{aside}/manifest.json")
        bucket.commit(save_id(3))
    rows = [row for row in facts("ls", bucket.tier.where) if row["tier"] == "aside"]
    assert len(rows) == 2 and "1 of 1 blocks do not match" in rows[0]["problems"][0]
    assert run("verify", bucket.tier.where).exit_code == 0


def test_a_bucket_exports_and_imports_what_torch_reads(bucket: Stored, server: S3Server, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    dcp.save({"w": torch.arange(3000.0)}, checkpoint_id=tmp_path / "in", no_dist=True)
    url = server.fresh_url()
    result = run("import", tmp_path / "in", url, "--step", "7", "--namespace", "model")
    assert result.exit_code == 0, result.stderr
    assert facts("ls", url)[0]["namespace"] == "model"
    result = run("export", url, "--dcp", tmp_path / "out")
    assert result.exit_code == 0 and "exported step 7: 1 tensors" in result.stdout, result.stderr
    state = {"w": torch.zeros(3000)}
    dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    assert torch.equal(state["w"], torch.arange(3000.0))


@pytest.mark.parametrize("command", [["gc", "--keep", "1"], ["export", "--dcp", "x"], ["copy", "/tmp/nowhere"]])
def test_a_url_without_a_namespace_is_one_line_and_exit_code_2_for_every_verb(
    bucket: Stored, command: list[str]
) -> None:
    result = run(command[0], "s3://bucket/nothing-there", *command[1:])
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1 and "no namespace there" in result.stderr


def test_a_bar_shows_once_it_has_taken_two_seconds_and_only_on_a_terminal() -> None:
    for terminal in (True, False):
        now, out = [0.0], io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=100)
        with Bar("copying", 1000, console, clock=lambda now=now: now[0]) as bar:
            bar.advance(10)
            assert out.getvalue() == ""
            now[0] = 2.1
            bar.advance(490)
        assert ("copying" in out.getvalue() and "0.5/1.0 kB" in out.getvalue()) is terminal, out.getvalue()
