"""What the tiers' tests share: saves to write, and each kind of tier with the way to damage what it has stored."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from s3_kit import BUCKET

from ckpt.format.checksums import checksums
from ckpt.format.layout import Layout
from ckpt.format.line import FIRST, Line
from ckpt.format.manifest import ShardPlace
from ckpt.format.shard_record import SaveId, ShardRecord
from ckpt.tiers.buckets import open_bucket
from ckpt.tiers.catalog import directory_name
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_client import S3Options
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Tier

WORLD = 4
KINDS = ("shared", "nvme", "s3", "gs", "az")
BUCKETS = ("s3", "gs", "az")


def save_id(step: int, attempt: int = 0, run_id: str = "run", line: Line = FIRST) -> SaveId:
    return SaveId(step=step, attempt=attempt, run_id=run_id, line=line)


def shard(
    save: SaveId, rank: int, world_size: int = WORLD, nbytes: int = 5000, **metrics: float
) -> tuple[ShardRecord, memoryview]:
    data = memoryview(bytes([(save.step * 7 + rank) % 251]) * nbytes)
    record = ShardRecord(
        save=save,
        namespace="ns",
        rank=rank,
        world_size=world_size,
        layout=Layout(chunks=(), tree=None, nbytes=nbytes),
        blocks=checksums(data),
        metrics=metrics,
    )
    return record, data


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A tier under test, and a way to its files that is not the tier's own."""

    kind: str
    tier: Tier
    again: Callable[[str], Tier]  # the same place, as another process sees it; the argument is the namespace
    get: Callable[[str], bytes]  # a file's bytes, by its path below the place
    put: Callable[[str, bytes], None]
    remove: Callable[[str], None]

    @property
    def node_ranks(self) -> list[range]:
        """The ranks of each node that writes to it."""
        return [range(2)] if self.tier.node_local else [range(2), range(2, 4)]

    def write(self, save: SaveId, nbytes: int = 5000, **metrics: float) -> list[ShardPlace]:
        self.tier.begin(save)
        places = []
        for node, ranks in enumerate(self.node_ranks):
            places += self.tier.write_node(save, node, [shard(save, rank, nbytes=nbytes, **metrics) for rank in ranks])
        return places

    def commit(self, save: SaveId, nbytes: int = 5000, **metrics: float) -> None:
        self.tier.commit(save, WORLD, self.write(save, nbytes, **metrics))


def stored(kind: str, root: Path, options: S3Options) -> Stored:
    """A fresh place of that kind, prepared for the namespace `ns`; `options` reach the server of a bucket."""
    if kind in BUCKETS:
        prefix = secrets.token_hex(4)
        url = f"{kind}://{BUCKET}/{prefix}"
        bucket = open_bucket(url, options, Throttle(None))
        found = Stored(
            kind=kind,
            tier=S3Tier(url, "ns", options),
            again=lambda namespace: S3Tier(url, namespace, options),
            get=lambda path: bucket.get(f"{prefix}/{path}", 1 << 30),
            put=lambda path, data: bucket.put(f"{prefix}/{path}", data),
            remove=lambda path: bucket.delete([f"{prefix}/{path}"]),
        )
    else:
        local = kind == "nvme"
        base = root / "n1" if local else root

        def put(path: str, data: bytes) -> None:
            (base / path).parent.mkdir(parents=True, exist_ok=True)
            (base / path).write_bytes(data)

        def again(namespace: str) -> Tier:
            return NvmeTier(root, namespace, node="n1") if local else SharedTier(root, namespace)

        found = Stored(
            kind=kind,
            tier=again("ns"),
            again=again,
            get=lambda path: (base / path).read_bytes(),
            put=put,
            remove=lambda path: (base / path).unlink(),
        )
    found.tier.prepare()
    return found


def path_of(save: SaveId, name: str) -> str:
    """A step's file, below the place."""
    return f"ns/{directory_name(save)}/{name}"
