"""holdfast ckpt ls and verify over s3:// URLs and nodes' own disks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from s3_kit import BUCKET, S3Server, s3_server
from test_cli_ckpt import facts, run
from tier_kit import Stored, path_of, save_id, stored

from ckpt.format.manifest import NAME
from ckpt.format.shard_record import seal_json, unseal_json
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.s3_bucket import S3Bucket
from ckpt.tiers.s3_client import S3Options, connections
from ckpt.tiers.throttle import Throttle


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stored:
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    place = stored("s3", tmp_path, server.options)
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


def test_the_newest_steps_of_a_bucket_are_listed_without_a_read_of_the_others(
    bucket: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(6, 40):
        bucket.commit(save_id(step))
    get, manifests = S3Bucket.get, []

    def noted(self: S3Bucket, key: str, *arguments: int) -> bytes:
        if key.endswith(NAME):
            manifests.append(key)
        return get(self, key, *arguments)

    monkeypatch.setattr(S3Bucket, "get", noted)
    assert [row["step"] for row in facts("ls", bucket.tier.where, "-n", "3")] == [39, 38, 37]
    assert len(manifests) <= 3 + connections()


def test_verify_reads_every_byte_of_a_bucket(bucket: Stored) -> None:
    url = bucket.tier.url  # type: ignore[attr-defined]
    file = path_of(save_id(3), "node-00001.data")
    bucket.put(file, b"\xff" + bucket.get(file)[1:])
    result = run("verify", url)
    assert result.exit_code == 1
    parent = url.rpartition("/")[0]
    assert f"DAMAGED rank 2 in {parent}/{file}: 1 of 1 blocks do not match, first block 0" in result.stdout
    assert run("verify", url, "--step", "4").exit_code == 0


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket/nothing-there", "no namespace there"),
        ("s3://no-such-bucket/x", "NoSuchBucket"),
        ("s3://B", "expected s3://bucket/prefix"),
        ("gs://b/x", "a bucket's name has 3 to 63 lower-case letters"),
    ],
)
def test_a_url_that_is_not_ours_is_a_usage_error_in_one_line(bucket: Stored, url: str, message: str) -> None:
    result = run("ls", url)
    assert result.exit_code == 2 and result.stdout == "" and len(result.messages) == 1
    assert message in result.stderr


VERBS = [["ls"], ["verify"], ["gc", "--keep", "1"], ["copy", "/tmp/nowhere"], ["export", "--dcp", "/tmp/nowhere"]]


@pytest.mark.parametrize("command", VERBS, ids=lambda command: command[0])
@pytest.mark.parametrize("wrong", ["secret", "none", "bucket"])
def test_wrong_credentials_and_buckets_are_one_line_and_exit_code_2_for_every_verb(
    bucket: Stored, monkeypatch: pytest.MonkeyPatch, wrong: str, command: list[str]
) -> None:
    url = bucket.tier.where
    if wrong == "secret":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    elif wrong == "none":
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    else:
        url = "s3://no-such-bucket/x"
    result = run(command[0], url, *command[1:])
    assert result.exit_code == 2 and result.stdout == "" and len(result.messages) == 1, result.output
    expected = {"bucket": "no-such-bucket", "none": "credentials"}.get(wrong, "look at the credentials")
    assert expected in result.stderr.lower()


@pytest.mark.parametrize(("verb", "code"), [("ls", 1), ("verify", 3)])
def test_a_server_that_is_away_is_one_line_and_no_damage(
    bucket: Stored, monkeypatch: pytest.MonkeyPatch, verb: str, code: int
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for module in ("lookup", "s3"):
        monkeypatch.setattr(f"ckpt.tiers.{module}.S3Options", partial(S3Options, attempts=1))
    result = run(verb, bucket.tier.where)
    assert result.exit_code == code and len(result.messages) == 1 and "127.0.0.1:9" in result.stderr


def sealed(change: dict[str, Any], manifest: bytes) -> bytes:
    """A manifest that verifies and says something else."""
    return seal_json({**unseal_json(manifest), **change})


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "oversize": lambda data: data + b" " * (1 << 20),
    "huge world": partial(sealed, {"world_size": 1 << 50}),
    "no number": partial(sealed, {"created": float("nan")}),
    "malformed layout": partial(sealed, {"parts": [[[], [["k"]]], None, [[1, [0], 1]]]}),
    "deep": lambda data: seal_json({"format": []}).replace(b"[]", b"[" * 100_000),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_manifest_in_a_bucket_is_a_bad_step_and_the_others_are_not(
    bucket: Stored, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("ckpt.tiers.tier.MAX_RECORD_BYTES", 1 << 20)
    file = path_of(save_id(3), "manifest.json")
    bucket.put(file, HOSTILE[kind](bucket.get(file)))
    assert [row["step"] for row in facts("ls", bucket.tier.where)] == [5, 4, 3]
    result = run("verify", bucket.tier.where, "--quarantine")
    assert result.exit_code == 1 and "Traceback" not in result.stderr and "error:" not in result.stderr
    assert (
        result.stdout.count("DAMAGED") == 2
        and f"quarantined as {bucket.tier.where}/bad-step-0000000003" in result.stdout
    )
    assert [save.step for save in bucket.tier.steps()] == [4]
    assert run("verify", bucket.tier.where).exit_code == 0


def test_a_step_that_cannot_be_read_is_never_quarantined(
    bucket: Stored, monkeypatch: pytest.MonkeyPatch, server: S3Server
) -> None:
    """The credentials expire between the listing and the data."""
    read = S3Bucket.get_into

    def expired(self: S3Bucket, *arguments: Any) -> None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired")
        read(S3Bucket(BUCKET, S3Options(endpoint_url=server.endpoint_url), Throttle(None)), *arguments)

    monkeypatch.setattr(S3Bucket, "get_into", expired)
    result = run("verify", bucket.tier.where, "--quarantine")
    assert result.exit_code == 3 and "nothing of it was quarantined" in result.stdout and "DAMAGED" not in result.stdout
    assert [save.step for save in bucket.tier.steps()] == [4, 3]


@pytest.mark.parametrize("below", ["", "n1", "n1/ns"])
def test_a_nodes_disk_is_listed_and_verified_and_whether_a_step_is_whole_is_not_for_it_to_say(
    tmp_path: Path, server: S3Server, below: str
) -> None:
    place = stored("nvme", tmp_path, server.options)
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
    assert result.exit_code == 1 and f"DAMAGED rank 0 in {file}" in result.stdout


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
    assert result.exit_code == 0 and "1 step, 20.0 kB freed" in result.stdout
    assert [save.step for save in bucket.tier.steps()] == [4]


def test_a_bad_step_of_a_bucket_is_quarantined_whole_with_the_reason(bucket: Stored) -> None:
    for number in ("", ".2"):
        file = path_of(save_id(3), "node-00001.data")
        bucket.put(file, b"\xff" + bucket.get(file)[1:])
        aside = f"bad-{directory_name(save_id(3))}{number}"
        result = run("verify", bucket.tier.where, "--quarantine")
        assert result.exit_code == 1 and f"quarantined as {bucket.tier.where}/{aside}" in result.stdout
        assert [save.step for save in bucket.tier.steps()] == [4]
        assert bucket.get(f"ns/{aside}/node-00001.data")[:1] == b"\xff" and bucket.get(f"ns/{aside}/manifest.json")
        bucket.commit(save_id(3))
    rows = [row for row in facts("ls", bucket.tier.where) if row["tier"] == "quarantine"]
    assert len(rows) == 2 and "1 of 1 blocks do not match" in rows[0]["problems"][0]
    assert run("verify", bucket.tier.where).exit_code == 0


def test_a_bucket_exports_and_imports_what_torch_reads(bucket: Stored, server: S3Server, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    dcp.save({"w": torch.arange(3000.0)}, checkpoint_id=tmp_path / "in")
    url = server.fresh_url()
    result = run("import", tmp_path / "in", url, "--step", "7", "--namespace", "model")
    assert result.exit_code == 0, result.stderr
    assert facts("ls", url)[0]["namespace"] == "model"
    result = run("export", url, "--dcp", tmp_path / "out")
    assert result.exit_code == 0 and "exported step 7: 1 tensors" in result.stdout, result.stderr
    state = {"w": torch.zeros(3000)}
    dcp.load(state, checkpoint_id=tmp_path / "out")
    assert torch.equal(state["w"], torch.arange(3000.0))


@pytest.mark.parametrize("command", [["gc", "--keep", "1"], ["export", "--dcp", "x"], ["copy", "/tmp/nowhere"]])
def test_a_url_without_a_namespace_is_one_line_and_exit_code_2_for_every_verb(
    bucket: Stored, command: list[str]
) -> None:
    result = run(command[0], "s3://bucket/nothing-there", *command[1:])
    assert result.exit_code == 2 and len(result.messages) == 1 and "no namespace there" in result.stderr
