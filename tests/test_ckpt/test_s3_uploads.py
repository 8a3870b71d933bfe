"""What goes up to S3: in parts, signed, encrypted where asked; whole or not at all wherever its writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from zlib import crc32

import pytest
from s3_kit import BUCKET, S3Server, answering, s3_server
from test_s3 import error
from tier_kit import WORLD, save_id, shard, stored

from ckpt.format.checksums import BLOCK_BYTES
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_bucket import S3Bucket
from ckpt.tiers.throttle import Throttle

GAPPED = [(0, 500), (900, 300), (1950, 100), (2900, 1200), (4500, 10), (7500, 600)]  # offsets and sizes of pieces


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


def test_a_large_file_goes_up_in_parts_that_may_span_shards(server: S3Server, monkeypatch) -> None:
    monkeypatch.setattr("ckpt.tiers.bucket.PART_BYTES", 5 << 20)
    place = stored("s3", Path(), server.options)
    place.commit(save_id(1), 2 * BLOCK_BYTES + 77)
    for entry in place.tier.read_manifest(save_id(1)).shards:
        data = memoryview(bytearray(2 * BLOCK_BYTES + 77))
        place.tier.read(save_id(1), entry, 0, data)
        assert data == shard(save_id(1), entry.rank, nbytes=len(data))[1]


def test_an_upload_that_fails_leaves_no_parts_behind(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckpt.tiers.bucket.PART_BYTES", 5 << 20)
    tier = S3Tier(server.fresh_url(), "ns", server.options)

    class Failing(Throttle):
        def take(self, nbytes: int) -> None:
            if nbytes < 5 << 20:
                raise OSError("the last part fails")

    tier._bucket._throttle = Failing(None)
    with pytest.raises(OSError, match="the last part fails"):
        tier.write_node(save_id(1), 0, [shard(save_id(1), 0, nbytes=12 << 20)])
    assert tier._bucket.uploads(f"{tier._prefix}/") == [] == tier._bucket.keys(f"{tier._prefix}/")


@dataclass
class Uploads:
    """What came with each part, and answers to all of an upload; the first part is refused once."""

    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)  # method, path, headers
    copied: bytes = b""  # answer to what is no part
    parts: dict[int, bytes] = field(default_factory=dict)
    headers: list[dict[str, str]] = field(default_factory=list)
    refused: bool = False

    def __call__(self, request: Any) -> None:
        asked = dict(parse_qsl(urlsplit(request.path).query, keep_blank_values=True))
        self.asked.append(
            (request.command, request.path, {name.lower(): value for name, value in request.headers.items()})
        )
        answer = b""
        if "partNumber" not in asked and request.command in ("PUT", "HEAD"):
            answer = self.copied if request.command == "PUT" else b""
        elif request.command == "POST" and "uploads" in asked:
            answer = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
        elif request.command == "POST":
            answer = b"<CompleteMultipartUploadResult/>"
        elif not self.refused:
            self.refused = True
            error(503, "SlowDown")(request)
            return
        else:
            body = self.parts[int(asked["partNumber"])] = request.body
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            assert request.headers["x-amz-checksum-crc32"] == b64encode(crc32(body).to_bytes(4, "big")).decode()
        request.send_response(200)
        request.send_header("Content-Length", str(len(answer)))
        request.send_header("ETag", '"tag"')
        request.end_headers()
        request.wfile.write(answer)


def test_a_part_goes_up_at_once_with_its_checksum_and_again_unchanged_when_it_was_refused(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that leave gaps, parts that begin and end in them: the bodies are used again, the gaps are zeros."""
    monkeypatch.setattr("ckpt.tiers.bucket.PART_BYTES", 1000)
    pieces = [(offset, memoryview(bytes([1 + offset % 255]) * nbytes)) for offset, nbytes in GAPPED]
    expected = bytearray(max(offset + len(data) for offset, data in pieces))
    for offset, data in pieces:
        expected[offset : offset + len(data)] = data
    uploads = Uploads()
    with answering(uploads) as options:
        S3Bucket(BUCKET, options, Throttle(None)).put_pieces("key", pieces)
    assert uploads.refused and b"".join(uploads.parts[number] for number in sorted(uploads.parts)) == expected
    for headers in uploads.headers:
        assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert "x-amz-checksum-crc32" in headers["authorization"]  # signed
        assert "expect" not in headers and "transfer-encoding" not in headers


def test_whoever_wants_his_payloads_signed_says_so_where_all_programs_look(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ckpt.tiers.bucket.PART_BYTES", 1000)
    (tmp_path / "config").write_text("[default]\ns3 =\n  payload_signing_enabled = true\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    uploads = Uploads()
    with answering(uploads) as options:
        S3Bucket(BUCKET, options, Throttle(None)).put_pieces("key", [(0, memoryview(bytes(1500)))])
    assert [headers["x-amz-content-sha256"] for headers in uploads.headers] == [
        sha256(bytes(int(headers["content-length"]))).hexdigest() for headers in uploads.headers
    ]


def test_encryption_is_asked_for_at_every_object_that_is_made(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckpt.tiers.bucket.PART_BYTES", 1000)
    copied = "<CopyObjectResult><ETag>x</ETag></CopyObjectResult>"
    uploads = Uploads(refused=True, asked=(asked := []), copied=copied.encode())
    with answering(uploads) as options:
        bucket = S3Bucket(BUCKET, replace(options, sse="aws:kms", sse_kms_key_id="key"), Throttle(None))
        bucket.put("a", b"")
        bucket.put_pieces("b", [(0, memoryview(bytes(1001)))])
        bucket.copy("a", "c")
    kinds = [
        (method, urlsplit(path).path, headers.get("x-amz-server-side-encryption"),
         headers.get("x-amz-server-side-encryption-aws-kms-key-id"))
        for method, path, headers in asked
        if (method, "partNumber" in path, "uploadId" in path) in (("PUT", False, False), ("POST", False, False))
    ]  # fmt: skip
    made = [("PUT", "/bucket/a"), ("POST", "/bucket/b"), ("PUT", "/bucket/c")]
    assert kinds == [(*what, "aws:kms", "key") for what in made]


_KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[4])
from ckpt.tiers import bucket, s3_bucket
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.mark import new_mark
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_client import S3Options
from tier_kit import WORLD, save_id, shard
bucket.PART_BYTES = 5 << 20
operation, count = sys.argv[1].split(":")
left = [int(count)]
real = s3_bucket.make_client
class Dying:
    def __init__(self, options):
        self.client = real(options)
    def __getattr__(self, name):
        if name == operation:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self.client, name)
s3_bucket.make_client = Dying
tier = S3Tier(sys.argv[2], "ns", S3Options(endpoint_url=sys.argv[3], region="us-east-1", path_style=True))
save = save_id(2)
places = [place for node in (0, 1) for place in tier.write_node(
    save, node, [shard(save, rank, nbytes=6 << 20) for rank in (2 * node, 2 * node + 1)])]
tier.commit(save, WORLD, places)
tier.retain(1)
"""

_STAGES = ("create_multipart_upload:1", "upload_part:0", "upload_part:4", "complete_multipart_upload:0",
           "complete_multipart_upload:1", "put_object:0", "delete_objects:0", "delete_objects:1")  # fmt: skip


@pytest.mark.parametrize("stage", _STAGES)
def test_a_process_killed_at_any_stage_leaves_a_checkpoint_and_the_next_one_clears_up(
    server: S3Server, stage: str
) -> None:
    url = server.fresh_url()
    tier = S3Tier(url, "ns", server.options)
    tier.prepare()

    def commit(step: int) -> None:
        save = save_id(step)
        places = [
            place
            for node in (0, 1)
            for place in tier.write_node(save, node, [shard(save, rank) for rank in (2 * node, 2 * node + 1)])
        ]
        tier.commit(save, WORLD, places)

    commit(1)
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, stage, url, server.endpoint_url, str(Path(__file__).parent)],
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == -signal.SIGKILL
    assert tier.steps() in ([save_id(1)], [save_id(2), save_id(1)], [save_id(2)])
    commit(3)
    tier.retain(1)
    assert tier.steps() == [save_id(3)]
    assert tier._bucket.uploads(f"{tier._prefix}/") == []
    assert {key.rpartition("/")[2] for key in tier._bucket.keys(f"{tier._prefix}/")} == {
        "holdfast.json", "manifest.json", "node-00000.data", "node-00001.data"
    }  # fmt: skip
