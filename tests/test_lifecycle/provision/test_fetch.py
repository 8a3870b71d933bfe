"""Nothing is opened before its checksum is right, wherever it is from."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lifecycle import versions
from lifecycle.provision.fetch import Fetch
from lifecycle.provision.site import Site
from lifecycle.provision.step import StepError
from slurm.command import run
from tests.test_ckpt.s3_kit import BUCKET, s3_server

_BODY = b"installer" * 1000
_SHA256 = hashlib.sha256(_BODY).hexdigest()
_FILE = "aws-efa-installer-1.42.0.tar.gz"


def _fetch(tmp_path: Path, **site: Any) -> Fetch:
    return Fetch(Site.from_mapping(site, "t"), tmp_path / "cache")


def _mirror(tmp_path: Path, body: bytes) -> str:
    mirror = tmp_path / "mirror"
    mirror.mkdir(exist_ok=True)
    (mirror / _FILE).write_bytes(body)
    return str(mirror)


def test_a_mirrors_file_is_taken_once(tmp_path: Path) -> None:
    fetch = _fetch(tmp_path, mirror=_mirror(tmp_path, _BODY))
    path = fetch("efa", "1.42.0", _SHA256)
    assert path.read_bytes() == _BODY
    (tmp_path / "mirror" / _FILE).unlink()
    assert fetch("efa", "1.42.0", _SHA256) == path


@pytest.mark.parametrize("body", [_BODY[:-1], b"", _BODY + b"!"], ids=["cut short", "empty", "replaced"])
def test_a_wrong_file_is_refused_and_not_kept(tmp_path: Path, body: bytes) -> None:
    fetch = _fetch(tmp_path, mirror=_mirror(tmp_path, body))
    with pytest.raises(StepError, match=f"expected {_SHA256}"):
        fetch("efa", "1.42.0", _SHA256)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cached_file_that_changed_is_fetched_again(tmp_path: Path) -> None:
    fetch = _fetch(tmp_path, mirror=_mirror(tmp_path, _BODY))
    path = fetch("efa", "1.42.0", _SHA256)
    path.write_bytes(b"bad")
    assert fetch("efa", "1.42.0", _SHA256).read_bytes() == _BODY


def test_what_a_killed_fetch_left_is_overwritten(tmp_path: Path) -> None:
    fetch = _fetch(tmp_path, mirror=_mirror(tmp_path, _BODY))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / f"efa-{_FILE}.part").write_bytes(b"x" * 20000)
    assert fetch("efa", "1.42.0", _SHA256).read_bytes() == _BODY


def test_a_file_without_a_pinned_checksum_is_not_fetched_until_the_site_names_one(tmp_path: Path) -> None:
    """The command that takes it can be run as it stands in the message."""
    mirror = _mirror(tmp_path, _BODY)
    with pytest.raises(StepError, match="no checksum is pinned") as caught:
        _fetch(tmp_path, mirror=mirror)("efa", "1.42.0")
    command = str(caught.value).split("`")[1]
    taken = run(("bash", "-c", command)).stdout.split()[0]
    assert taken == _SHA256 and "add it to /etc/holdfast/node.yaml: sha256: {efa: SUM}" in str(caught.value)
    assert _fetch(tmp_path, mirror=mirror, sha256={"efa": taken})("efa", "1.42.0").read_bytes() == _BODY


@pytest.mark.parametrize(
    ("mirror", "command"),
    [
        ("", "`curl -fsSL https://efa-installer.amazonaws.com/aws-efa-installer-1.42.0.tar.gz | sha256sum`"),
        ("s3://b/x", "`aws s3 cp s3://b/x/aws-efa-installer-1.42.0.tar.gz - | sha256sum`"),
    ],
)
def test_the_command_that_takes_a_checksum_reads_what_would_be_fetched(
    tmp_path: Path, mirror: str, command: str
) -> None:
    with pytest.raises(StepError) as caught:
        _fetch(tmp_path, mirror=mirror)("efa", "1.42.0")
    assert command in str(caught.value)


def test_a_file_that_the_mirror_lacks_is_said(tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"cannot be downloaded.*put the right file into the mirror"):
        _fetch(tmp_path, mirror=str(tmp_path))("efa", "1.42.0", _SHA256)


def test_from_a_mirror_on_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real server, found as AWS's own tools find one that is not AWS."""
    (tmp_path / "s3" / BUCKET / "holdfast").mkdir(parents=True)
    (tmp_path / "s3" / BUCKET / "holdfast" / _FILE).write_bytes(_BODY)
    with s3_server(tmp_path / "s3") as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint_url)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        fetch = _fetch(tmp_path, mirror=f"s3://{BUCKET}/holdfast/")
        assert fetch("efa", "1.42.0", _SHA256).read_bytes() == _BODY
        with pytest.raises(StepError, match=rf"s3://{BUCKET}/holdfast/aws-efa-installer-9.tar.gz: .*NoSuchKey"):
            fetch("efa", "9", _SHA256)
        server.stop()
        with pytest.raises(
            StepError, match=r"cannot be downloaded \(Could not connect.*put the right file into the mirror"
        ):
            fetch("efa", "9", _SHA256)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"efa-{_FILE}"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_is_full_is_named_and_nothing_half_is_left(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    run(("mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(cache)))
    try:
        with pytest.raises(StepError, match=rf"{cache}: No space left on device during .*; make room there"):
            _fetch(tmp_path, mirror=_mirror(tmp_path, _BODY))("efa", "1.42.0", _SHA256)
        assert list(cache.iterdir()) == []
    finally:
        run(("umount", str(cache)))


class _Server(BaseHTTPRequestHandler):
    """Serves the file; below /cut only half of it, though it announces all; below /busy at the third request."""

    requests = 0

    def do_GET(self) -> None:
        type(self).requests += 1
        if self.path.startswith("/busy") and self.requests < 3:
            self.send_error(503)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(_BODY)))
        self.end_headers()
        self.wfile.write(_BODY[: len(_BODY) // 2] if self.path.startswith("/cut") else _BODY)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def url() -> Iterator[str]:
    _Server.requests = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("cut", [False, True])
def test_from_its_url_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, cut: bool) -> None:
    row = {"url": f"{url}/{'cut' if cut else 'whole'}/{{version}}.tar.gz"}
    monkeypatch.setitem(versions.table()["artifacts"], "efa", row)
    if not cut:
        assert _fetch(tmp_path)("efa", "1.42.0", _SHA256).read_bytes() == _BODY
        return
    with pytest.raises(StepError, match=f"over {len(_BODY) // 2} bytes|cannot be downloaded"):
        _fetch(tmp_path)("efa", "1.42.0", _SHA256)
    assert not list((tmp_path / "cache").glob("*"))


def test_a_server_that_is_busy_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setitem(versions.table()["artifacts"], "efa", {"url": f"{url}/busy/{{version}}.tar.gz"})
    assert _fetch(tmp_path)("efa", "1.42.0", _SHA256).read_bytes() == _BODY
    assert _Server.requests == 3
