"""A real S3 server that the nodes of a test cluster reach; it can die, hang and come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waiting import until

KEY, SECRET = "HOLDFASTTESTACCESSKEY", "holdfast-test-secret-of-a-realistic-length"
BUCKET = "bucket"
PORT = 9391


class ClusterS3:
    """`rclone serve s3` at the host's address on the cluster's network."""

    def __init__(self, cluster: Any, root: Path) -> None:
        self._cluster = cluster
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        (root / BUCKET).mkdir(parents=True, exist_ok=True)

    @classmethod
    @contextmanager
    def running(cls, cluster: Any) -> Iterator[ClusterS3]:
        with tempfile.TemporaryDirectory(prefix="holdfast-s3-", dir="/var/tmp") as root:
            server = cls(cluster, Path(root))
            server.start()
            try:
                yield server
            finally:
                server.stop()

    @property
    def folder(self) -> Path:
        """The bucket's objects, as files."""
        return self._root / BUCKET

    @property
    def environment(self) -> dict[str, str]:
        """The credentials, for the job."""
        return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}

    def section(self, prefix: str) -> dict[str, object]:
        """The `s3:` section of a job file."""
        url = f"http://{self._cluster.host_address}:{PORT}"
        return {"url": f"s3://{BUCKET}/{prefix}", "endpoint_url": url, "region": "us-east-1", "path_style": True}

    def start(self) -> None:
        rclone = Path(sys.executable).with_name("rclone")
        serve = [str(rclone), "serve", "s3", "--addr", f"{self._cluster.host_address}:{PORT}"]
        keys = ["--auth-key", f"{KEY},{SECRET}", "--vfs-cache-mode", "off", "--etag-hash", "none"]
        self._process = subprocess.Popen(
            [*serve, *keys, "--config", os.devnull, str(self._root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        probe = f"exec 3<>/dev/tcp/{self._cluster.host_address}/{PORT}"
        node = self._cluster.nodes[0]
        until(lambda: self._cluster.run_on_node(node, ["bash", "-c", probe], check=False).returncode == 0, "S3 server")

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
