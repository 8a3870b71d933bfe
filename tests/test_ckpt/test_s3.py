"""How S3 is reached, and what it may answer: refused, slow, truncated. An error, never an absent step."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from botocore.exceptions import EndpointConnectionError
from s3_kit import BUCKET, KEY, SECRET, Answer, S3Server, answering, s3_server
from tier_kit import save_id
from urllib3.exceptions import SSLError

from ckpt.errors import ConfigError, CorruptError, NamespaceError
from ckpt.tiers.bucket import PART_BYTES
from ckpt.tiers.buckets import split_url
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.mark import new_mark
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_bucket import S3Bucket
from ckpt.tiers.s3_client import S3Options, telling
from ckpt.tiers.throttle import Throttle


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


def error(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>said so</Message></Error>".encode()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    return answer


def hello(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "5")
    request.end_headers()
    request.wfile.write(b"hello")


def short(request: BaseHTTPRequestHandler) -> None:
    """Promises more than it sends."""
    request.send_response(200)
    request.send_header("Content-Length", "5")
    request.end_headers()
    request.wfile.write(b"xx")
    request.close_connection = True


class Answers:
    """One answer after another."""

    def __init__(self, *answers: Answer) -> None:
        self.left = list(answers)

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        self.left.pop(0)(request)


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (error(503, "SlowDown"), "SlowDown"),
        (error(500, "InternalError"), "InternalError"),
        (error(403, "AccessDenied"), "AccessDenied"),
        (error(404, "NoSuchBucket"), "NoSuchBucket"),
        (error(400, "ExpiredToken"), "ExpiredToken"),
    ],
    ids=["slow down", "internal", "denied", "no bucket", "expired"],
)
def test_an_error_is_never_taken_for_an_absent_step(server: S3Server, answer: Answer, match: str) -> None:
    calls: tuple[Callable[[S3Tier], object], ...] = (
        S3Tier.steps,
        S3Tier.prepare,
        lambda tier: tier.read_manifest(save_id(1)),
        lambda tier: tier.retain(1),
    )
    with answering(answer) as options:
        for call in calls:  # a client for each: after a 503 the same one would wait before it asks again
            with pytest.raises(OSError, match=match) as caught:
                call(S3Tier("s3://bucket/x", "ns", replace(options, attempts=1)))
            assert not isinstance(caught.value, FileNotFoundError)
            assert str(caught.value).startswith("s3://bucket/x/ns") and "\n" not in str(caught.value)


def test_the_mark_that_another_agent_puts_while_we_look_is_ours_too(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, anything = server.fresh_url(), S3Bucket.anything
    ours, theirs = (S3Tier(url, "ns", server.options) for _ in range(2))

    def meanwhile(self: S3Bucket, prefix: str) -> bool:
        monkeypatch.setattr(S3Bucket, "anything", anything)
        theirs.prepare()
        return anything(self, prefix)

    monkeypatch.setattr(S3Bucket, "anything", meanwhile)
    assert ours.prepare() == theirs.prepare()


def test_the_keys_of_another_user_are_refused(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url, user = server.fresh_url(), os.getuid()
    S3Tier(url, "ns", server.options).prepare()
    S3Tier(url, "ns", server.options).check()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    for look in (S3Tier.prepare, S3Tier.check):
        with pytest.raises(NamespaceError, match=f"/ns: belongs to uid {user}, we are uid {user + 1}"):
            look(S3Tier(url, "ns", server.options))


def test_a_server_that_says_slow_down_is_asked_again(server: S3Server) -> None:
    answers = Answers(error(503, "SlowDown"), hello)
    with answering(answers) as options:
        bucket = S3Bucket(BUCKET, options, Throttle(None))
        assert bucket.get("key") == b"hello"
    assert not answers.left
    assert bucket._client.meta.config.retries["mode"] == "adaptive"  # botocore's: all requests slow down, not one


def read_whole(bucket: S3Bucket) -> bytes:
    return bucket.get("key")


def read_range(bucket: S3Bucket) -> bytes:
    bucket.get_into("key", 0, memoryview(into := bytearray(5)))
    return bytes(into)


@pytest.mark.parametrize("read", [read_whole, read_range])
@pytest.mark.parametrize("again", [hello, short])
def test_an_answer_that_breaks_off_is_asked_for_again_and_in_the_end_an_error(
    server: S3Server, read: Callable[[S3Bucket], bytes], again: Answer
) -> None:
    answers = Answers(short, again)
    with answering(answers) as options:
        bucket = S3Bucket(BUCKET, options, Throttle(None))
        if again is hello:
            assert read(bucket) == b"hello"
        else:
            with pytest.raises(OSError, match="s3://bucket/key"):
                read(bucket)
    assert not answers.left


def test_tls_that_fails_in_mid_body_is_an_error_like_any_other() -> None:
    """Botocore hands urllib3's own error on."""
    with pytest.raises(OSError, match="s3://bucket/key: bad record mac"), telling("s3://bucket/key"):
        raise SSLError("bad record mac")


def test_an_answer_longer_than_was_asked_for_is_not_taken(server: S3Server) -> None:
    """From a server, or something before it, that takes no heed of ranges."""
    with answering(hello) as options, pytest.raises(CorruptError, match="5 bytes, expected at most 4"):
        S3Bucket(BUCKET, options, Throttle(None)).get_into("key", 1, memoryview(bytearray(4)))


def test_nobody_listening_is_an_error_that_names_the_object() -> None:
    options = S3Options(endpoint_url="http://127.0.0.1:9", region="us-east-1", path_style=True, attempts=1)
    with pytest.raises(OSError, match=r"s3://bucket/x/ns/.*127\.0\.0\.1:9"):
        S3Tier("s3://bucket/x", "ns", options).steps()


def test_wrong_credentials_are_an_error(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret-of-a-realistic-length")
    with pytest.raises(OSError, match=r"s3://bucket/.*SignatureDoesNotMatch"):
        S3Tier(server.fresh_url(), "ns", server.options).steps()


def test_no_credentials_are_an_error(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(OSError, match="credentials"):
        S3Tier(server.fresh_url(), "ns", server.options).steps()


def test_without_boto3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] in ("boto3", "botocore")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast-hpc\[s3\]'"):
        S3Tier("s3://bucket/x", "ns").steps()


def test_a_file_of_credentials_serves_as_for_any_program(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    (tmp_path / "file").write_text(f"[training]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "file"))
    monkeypatch.setenv("AWS_PROFILE", "training")
    assert S3Tier(server.fresh_url(), "ns", server.options).steps() == []


@pytest.mark.parametrize(
    ("path_style", "configured", "where"),
    [
        (True, "virtual", "https://s3.site/bucket/key"),
        (False, "path", "https://bucket.s3.site/key"),
        (None, "virtual", "https://bucket.s3.site/key"),
        (None, None, "https://s3.site/bucket/key"),
    ],
)
def test_the_bucket_is_named_in_the_path_or_in_the_host(
    server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    path_style: bool | None,
    configured: str,
    where: str,
) -> None:
    """Of a named endpoint: botocore asks one that is a number, as all others here are, in the path at any rate."""
    if configured:
        (tmp_path / "config").write_text(f"[default]\ns3 =\n  addressing_style = {configured}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    options = S3Options(endpoint_url="https://s3.site", region="us-east-1", path_style=path_style, attempts=1)
    bucket, sent = S3Bucket(BUCKET, options, Throttle(None)), []

    def refuse(request: Any, **_: object) -> None:
        sent.append(request.url)
        raise EndpointConnectionError(endpoint_url=request.url)

    bucket._client.meta.events.register("before-send.s3", refuse)
    with pytest.raises(OSError):
        bucket.get("key")
    assert sent == [where]


@pytest.mark.parametrize("url", ["s3:/b/x", "s3://", "s3://b", "http://bucket/x", "s3://bu_ck", "s3://bucket/a\nb"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected s3://bucket/prefix"):
        split_url(url)


def test_a_directory_bucket_of_s3_express_is_asked_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its zone's host, a session's token, CRC-32 for every part; keys in any order. No such server can be had: botocore
    sends nothing, and gets the answers that the manual has."""
    from botocore.awsrequest import AWSResponse

    for name, value in (("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ckpt.tiers.bucket.PART_BYTES", 1000)
    directory_bucket, sent = "train--usw2-az1--x-s3", []
    credentials = "".join(
        f"<{name}>{value}</{name}>"
        for name, value in (("SessionToken", "token"), ("SecretAccessKey", "secret"), ("AccessKeyId", "key"),
                            ("Expiration", "2999-01-01T00:00:00Z"))
    )  # fmt: skip
    answers = {
        "session": f"<CreateSessionResult><Credentials>{credentials}</Credentials></CreateSessionResult>",
        "uploads": "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
        "list-type": "<ListBucketResult><Contents><Key>x/b</Key></Contents><Contents><Key>x/a</Key></Contents>"
        "</ListBucketResult>",
        "uploadId": "<CompleteMultipartUploadResult/>",
    }

    class Raw:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def stream(self, **_: object) -> Iterator[bytes]:
            yield self.data

    def answer(request: Any, **_: object) -> AWSResponse:
        asked = dict(parse_qsl(urlsplit(request.url).query, keep_blank_values=True))
        sent.append((request, asked))
        body = next((text for name, text in answers.items() if name in asked), "")
        return AWSResponse(request.url, 200, {"ETag": '"tag"'}, Raw(b"" if "partNumber" in asked else body.encode()))

    bucket = S3Bucket(directory_bucket, S3Options(region="us-west-2"), Throttle(None))
    assert bucket._client.meta.region_name == "us-west-2"
    bucket._client.meta.events.register("before-send.s3", answer)
    bucket.put_pieces("x/a", [(0, memoryview(bytes(1500)))])
    assert sorted(bucket.keys("x/")) == ["x/a", "x/b"]
    hosts = {urlsplit(request.url).hostname for request, _ in sent}
    assert hosts == {f"{directory_bucket}.s3express-usw2-az1.us-west-2.amazonaws.com"}
    assert "session" in sent[0][1]
    for request, asked in sent[1:]:
        assert request.headers["x-amz-s3session-token"] in ("token", b"token")
        assert ("partNumber" in asked) == ("x-amz-checksum-crc32" in request.headers)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A namespace of 1,100 steps never committed, the oldest of 10,000 objects; a page of a listing has 1,000."""
    root = tmp_path_factory.mktemp("crowded")
    folder = root / BUCKET / "many" / "ns"
    for step in range(1, 1101):
        (place := folder / directory_name(save_id(step))).mkdir(parents=True)
        for node in range(10_000 if step == 1 else 1):
            (place / f"node-{node:05d}.data").touch()
    (folder / "holdfast.json").write_bytes(new_mark("ns"))
    with s3_server(root) as running:
        yield running


def test_listings_of_many_pages_are_followed_to_their_end(crowded: S3Server) -> None:
    place = S3Tier(f"s3://{BUCKET}/many", "ns", crowded.options)
    assert [entry.step for entry in place.catalog()] == list(range(1100, 0, -1))
    bucket, oldest = S3Bucket(BUCKET, crowded.options, Throttle(None)), f"many/ns/{directory_name(save_id(1))}/"
    keys = bucket.keys(oldest)
    assert len(keys) == len(set(keys)) == 10_000
    bucket.delete(keys)
    assert bucket.keys(oldest) == [] and len(bucket.keys("many/")) == 1100


def test_every_request_names_the_account_that_should_own_the_bucket() -> None:
    """S3 refuses it then if the bucket's name has come to another account."""
    asked: list[tuple[str, str | None]] = []

    def foreign(request: BaseHTTPRequestHandler) -> None:
        asked.append((request.command, request.headers.get("x-amz-expected-bucket-owner")))
        error(403, "AccessDenied")(request)

    with answering(foreign) as options:
        bucket = S3Bucket(BUCKET, replace(options, bucket_owner="123456789012"), Throttle(None))
        calls: list[Callable[[], object]] = [
            lambda: bucket.put("a", b"x"), lambda: bucket.get("a"), lambda: bucket.exists("a"),
            lambda: bucket.copy("a", "b"), lambda: bucket.keys("a"), lambda: bucket.delete(["a"]),
            lambda: bucket.uploads("a"), lambda: bucket.put_pieces("a", [(PART_BYTES, memoryview(b"x"))]),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(OSError):
                call()
    assert len(asked) >= len(calls) and {owner for _, owner in asked} == {"123456789012"}


def in_chunks(request: BaseHTTPRequestHandler, *, last: bytes = b"0\r\n\r\n") -> None:
    """Without a Content-Length."""
    request.protocol_version = "HTTP/1.1"
    request.send_response(200)
    request.send_header("Transfer-Encoding", "chunked")
    request.end_headers()
    request.wfile.write(b"5\r\nhello\r\n" + last)
    request.close_connection = True


def until_closed(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    request.wfile.write(b"hello")
    request.close_connection = True


@pytest.mark.parametrize("read", [read_whole, read_range])
@pytest.mark.parametrize("answer", [in_chunks, until_closed])
def test_an_answer_of_unknown_length_is_read_up_to_the_limit(read: Callable[[S3Bucket], bytes], answer: Answer) -> None:
    with answering(answer) as options:
        bucket = S3Bucket(BUCKET, options, Throttle(None))
        assert read(bucket) == b"hello" and bucket.exists("key")
        with pytest.raises(CorruptError, match=r"s3://bucket/key: 5 bytes, expected at most 4"):
            bucket.get("key", max_bytes=4)


def test_an_answer_in_chunks_that_breaks_off_is_asked_for_again() -> None:
    answers = Answers(partial(in_chunks, last=b"5\r\nhe"), in_chunks)
    with answering(answers) as options:
        assert S3Bucket(BUCKET, options, Throttle(None)).get("key") == b"hello"
    assert not answers.left


@pytest.mark.parametrize("status", [301, 307])
@pytest.mark.parametrize(
    "call", [lambda bucket: bucket.directories(""), read_whole, lambda bucket: bucket.put("key", b"")]
)
def test_redirects_without_end_are_one_error(status: int, call: Callable[[S3Bucket], object]) -> None:
    with answering(error(status, "PermanentRedirect")) as options, pytest.raises(OSError, match=str(status)) as caught:
        call(S3Bucket(BUCKET, options, Throttle(None)))
    assert str(caught.value).startswith("s3://bucket/") and "\n" not in str(caught.value)


class NoChecksums:
    """A server that refuses checksums, such as that of Backblaze B2 and older ones of Ceph."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.done: list[str] = []

    def __call__(self, request: Any) -> None:
        if any("checksum" in name.lower() for name in request.headers):
            error(400, "InvalidArgument")(request) if request.command == "HEAD" else self._refuse(request)
            return
        query = parse_qs(urlsplit(request.path).query)
        body = b""
        if "partNumber" in query:
            self.parts[query["partNumber"][0]] = bytes(request.body)
        elif request.command == "POST" and "uploadId" not in query:
            body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
        else:
            self.done.append(f"{request.command} {request.path.partition('?')[0]}")
        request.send_response(200)
        request.send_header("ETag", '"tag"')
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _refuse(self, request: Any) -> None:
        body = (
            b"<Error><Code>InvalidArgument</Code><Message>Unsupported header 'x-amz-checksum-crc32'</Message></Error>"
        )
        request.send_response(400)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


def test_without_checksums_large_objects_and_deletions_have_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    data, server = bytes(range(256)) * (17 << 12), NoChecksums()
    with answering(server) as options:
        bucket = S3Bucket(BUCKET, options, Throttle(None))
        bucket.put("small", b"1")
        bucket.put_pieces("large", [(0, memoryview(data))])
        bucket.delete(["a", "b"])
    assert b"".join(server.parts[number] for number in sorted(server.parts)) == data
    assert server.done[:2] == ["PUT /bucket/small", "POST /bucket/large"]
    assert sorted(server.done[2:]) == ["DELETE /bucket/a", "DELETE /bucket/b"]


def test_a_server_that_refuses_checksums_is_an_error_that_says_how_to_turn_them_off() -> None:
    with answering(NoChecksums()) as options:
        bucket = S3Bucket(BUCKET, options, Throttle(None))
        for put in (lambda: bucket.put("k", b"1"), lambda: bucket.put_pieces("k", [(0, memoryview(bytes(17 << 20)))])):
            with pytest.raises(OSError, match="set AWS_REQUEST_CHECKSUM_CALCULATION=when_required"):
                put()


def test_an_answer_that_is_not_of_s3_is_an_error_that_names_what_is_missing() -> None:
    with answering(hello) as options, pytest.raises(OSError, match="s3://bucket/key: "):
        S3Bucket(BUCKET, options, Throttle(None)).put_pieces("key", [(0, memoryview(bytes(17 << 20)))])
    with answering(until_closed_empty) as options, pytest.raises(OSError, match="answer has no UploadId"):
        S3Bucket(BUCKET, options, Throttle(None)).put_pieces("key", [(0, memoryview(bytes(17 << 20)))])


def until_closed_empty(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "0")
    request.end_headers()


def test_an_error_within_a_successful_answer_fails_the_upload() -> None:
    body = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"

    def answer(request: Any) -> None:
        if "uploadId" in request.path and request.command == "POST":
            error(200, "InternalError")(request)
            return
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    with answering(answer) as options, pytest.raises(OSError, match=r"s3://bucket/key: .*InternalError"):
        S3Bucket(BUCKET, options, Throttle(None)).put_pieces("key", [(0, memoryview(bytes(17 << 20)))])


def test_an_endpoint_of_the_environment_without_a_scheme_is_refused(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "minio:9000")
    with pytest.raises(
        ConfigError, match=r"s3: .*minio:9000; expected an endpoint that begins with http:// or https://"
    ):
        S3Bucket(BUCKET, S3Options(region="us-east-1"), Throttle(None)).get("key")
