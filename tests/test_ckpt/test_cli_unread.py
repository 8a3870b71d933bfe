"""holdfast ckpt verify --quarantine where storage fails: what could not be read is never taken for bad."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from s3_kit import KEY, SECRET, answering
from test_cli_ckpt import damage, facts, run
from tier_kit import save_id, shard

from ckpt.format import atomic_files as files
from ckpt.format.manifest import NAME, new_manifest
from ckpt.format.shard_record import seal_json
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.mark import MARK, new_mark
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.s3_client import S3Options
from ckpt.tiers.tier import node_places

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts what cannot be read")
DATA = "node-00001.data"


@pytest.fixture
def tier(tmp_path: Path) -> SharedTier:
    """Steps 3, 4 and 5."""
    tier = SharedTier(tmp_path, "ns")
    tier.prepare()
    for step in (3, 4, 5):
        tier.begin(save_id(step))
        places = [
            place
            for node in (0, 1)
            for place in tier.write_node(
                save_id(step), node, [shard(save_id(step), rank) for rank in (2 * node, 2 * node + 1)]
            )
        ]
        tier.commit(save_id(step), 4, places)
    return tier


def check_unread(where: str | Path, name: str, *reasons: str) -> None:
    """Verify names the step and what failed, quarantines nothing, and says so by its exit code."""
    result = run("verify", where, "--quarantine")
    assert result.exit_code == 3, result.output
    assert not result.messages, result.stderr
    assert "UNREAD nothing of it was quarantined; verify it again" in result.stdout and "DAMAGED" not in result.stdout
    for reason in ("could not be read: ", name, *reasons):
        assert reason in result.stdout
    assert [row["ok"] for row in facts("verify", where)].count(False) == 1
    assert all(row["tier"] != "quarantine" and not row["problems"] for row in facts("ls", where))


@contextmanager
def mounted(*arguments: str, on: Path) -> Iterator[None]:
    subprocess.run(["mount", *arguments, str(on)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(on)], check=True)


@needs_root
def test_a_shard_whose_reads_fail(tier: SharedTier) -> None:
    """A regular file whose first page gives EIO: a process's memory, as the kernel shows it."""
    with mounted("--bind", f"/proc/{os.getpid()}/mem", on=tier.data_path(save_id(4), DATA)):
        check_unread(tier.path, DATA, "Input/output error")
    assert run("verify", tier.path).exit_code == 0


@needs_root
@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="needs /dev/fuse")
def test_a_manifest_on_a_file_system_whose_server_is_gone(tier: SharedTier) -> None:
    """Nobody is left at the other end of this FUSE: the kernel answers ENOTCONN to everything."""
    directory = tier.folder / directory_name(save_id(4))
    device = os.open("/dev/fuse", os.O_RDWR)
    subprocess.run(
        ["mount", "-i", "-t", "fuse", "-o", f"fd={device},rootmode=40000,user_id=0,group_id=0", "none", str(directory)],
        check=True, pass_fds=[device],
    )  # fmt: skip
    os.close(device)
    try:
        check_unread(tier.path, directory.name, "Transport endpoint is not connected")
        assert tier.steps() == [save_id(5), save_id(3)]
        tier.retain(1)
        assert directory.name in os.listdir(tier.folder)  # whether it may go cannot be known
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)
    assert tier.steps() == [save_id(5), save_id(4)]


def fail(patch: pytest.MonkeyPatch, path: Path, code: int) -> None:
    """Opening this file fails so from now on."""
    open_file = os.open

    def failing(asked: Any, *arguments: Any, **keys: Any) -> int:
        if os.fspath(asked) == str(path):
            raise OSError(code, os.strerror(code), str(asked))
        return open_file(asked, *arguments, **keys)

    patch.setattr(files.os, "open", failing)


@pytest.mark.parametrize("name", [NAME, DATA])
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ETIMEDOUT], ids=errno.errorcode.get)
def test_every_error_of_a_file_system_on_a_manifest_and_on_a_shard(
    tier: SharedTier, monkeypatch: pytest.MonkeyPatch, code: int, name: str
) -> None:
    file = tier.data_path(save_id(4), name)
    fail(monkeypatch, file, code)
    check_unread(tier.path, str(file), os.strerror(code))


def test_damage_beside_it_is_still_damage(tier: SharedTier, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(tier.data_path(save_id(3), DATA), 100)
    fail(monkeypatch, tier.data_path(save_id(4), DATA), errno.ESTALE)
    result = run("verify", tier.path, "--quarantine")
    assert result.exit_code == 1 and "quarantined as" in result.stdout and "UNREAD" in result.stdout
    assert tier.steps() == [save_id(5), save_id(4)]


def test_the_newest_step_that_cannot_be_read_is_an_error_and_not_an_older_step(
    tier: SharedTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, tier.data_path(save_id(5), NAME), errno.ESTALE)
    with pytest.raises(OSError, match="Stale file handle"):
        tier.steps()


@pytest.mark.parametrize("name", [NAME, "node-00000.data"])
@pytest.mark.parametrize("how", ["503", "silence", "cut short"])
def test_a_bucket_whose_server_fails_for_one_object(monkeypatch: pytest.MonkeyPatch, how: str, name: str) -> None:
    monkeypatch.setattr("ckpt.tiers.s3_client._READ_S", 1.0)
    for variable, value in (("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)):
        monkeypatch.setenv(variable, value)
    save = save_id(4)
    records = [shard(save, rank) for rank in range(4)]
    places = node_places("node-00000.data", [record for record, _ in records])
    data = bytearray(places[-1].offset + places[-1].record.nbytes)
    for place, (_, own) in zip(places, records, strict=True):
        data[place.offset : place.offset + len(own)] = own
    stored = {
        MARK: new_mark("ns"),
        NAME: seal_json(new_manifest(save, 4, time.time(), places).to_json()),
        "node-00000.data": bytes(data),
    }

    def answer(request: BaseHTTPRequestHandler) -> None:
        file = request.path.partition("?")[0].rpartition("/")[2]
        if "list-type=2" in request.path:
            prefix = f"<CommonPrefixes><Prefix>x/ns/{directory_name(save)}/</Prefix></CommonPrefixes>"
            prefix = "" if "bad-step-" in request.path else prefix
            status, body = 200, f"<ListBucketResult>{prefix}</ListBucketResult>".encode()
        elif file == name and how == "503":
            status, body = 503, b"<Error><Code>SlowDown</Code><Message>said so</Message></Error>"
        elif file not in stored:
            status, body = 404, b"<Error><Code>NoSuchKey</Code></Error>"
        else:
            status, body = 200, stored[file]
            if first_and_last := request.headers.get("Range", "").removeprefix("bytes="):
                first, last = map(int, first_and_last.split("-"))
                status, body = 206, body[first : last + 1]
        if file == name and how == "silence":
            request.close_connection = True
            request.connection.recv(1)  # until the client has given up
            return
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if file == name and how == "cut short":
            request.close_connection = True
            body = body[: len(body) // 2]
        if request.command != "HEAD":
            request.wfile.write(body)

    with answering(answer) as options:
        monkeypatch.setenv("AWS_ENDPOINT_URL", str(options.endpoint_url))
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        for module in ("lookup", "s3"):
            monkeypatch.setattr(f"ckpt.tiers.{module}.S3Options", partial(S3Options, attempts=1, path_style=True))
        check_unread("s3://bucket/x/ns", directory_name(save))


def test_a_record_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "board").touch()
    (tmp_path / "own-0-0.json").touch()

    def failing(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "own-0-0.json")

    monkeypatch.setattr(files.os, "open", failing)
    result = run("verify", tmp_path)
    assert result.exit_code == 3 and "UNREAD own-0-0.json: could not be read" in result.stdout
    assert json.loads(run("ls", tmp_path, "--json").stdout)[0]["unread"]
