"""The namespace that a path or URL on a command line names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError
from ckpt.format.shard_record import SaveId
from ckpt.tiers.lookup import is_url, s3_tiers
from ckpt.tiers.mark import MARK
from ckpt.tiers.posix import SharedTier, read_mark
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Tier


def open_namespace(where: str) -> Tier:
    """Open the tier of a namespace at a directory or prefix, or one level below it.

    Args:
        where: an existing directory, or the URL of a bucket such as s3://bucket/prefix.

    Raises:
        ConfigError: there is no namespace, or there are several.
        NamespaceError: a mark cannot be read.
        OSError: the storage cannot be read.
    """
    tiers: Sequence[Tier] = s3_tiers(where) if is_url(where) else _directories(Path(where))
    if len(tiers) != 1:
        names = ", ".join(tier.namespace for tier in tiers) or "none"
        raise ConfigError(f"{where}: expected one checkpoint namespace, found {names}; give the folder of one")
    return tiers[0]


def make_namespace(where: str, namespace: str, throttle: Throttle | None = None) -> Tier:
    """The tier of a namespace below a directory or prefix. The namespace may not exist yet; this does not make it."""
    CheckpointConfig.from_mapping({"namespace": namespace}, where="namespace")
    if is_url(where):
        return S3Tier(where, namespace, throttle=throttle)
    return SharedTier(Path(where).absolute(), namespace, throttle=throttle)


def committed_step(tier: Tier, step: int | None) -> SaveId:
    """The newest committed save of a step; of all steps when None. Raises ConfigError when there is none."""
    for save in tier.steps():
        if step in (None, save.step):
            return save
    what = "committed step" if step is None else f"committed step {step}"
    raise ConfigError(f"{tier.where}: holds no {what}; look with `holdfast ckpt ls`")


def _directories(path: Path) -> list[SharedTier]:
    if (path / MARK).is_file():
        folders = [path]
    elif path.is_dir():
        folders = sorted(mark.parent for mark in path.glob(f"*/{MARK}"))
    else:
        raise ConfigError(f"{path}: is no directory")
    tiers = []
    for folder in folders:
        mark, tier = read_mark(folder), SharedTier(folder.parent, folder.name)
        if mark.node is not None:
            raise ConfigError(f"{path}: holds only the shards of node {mark.node}; give a shared checkpoint directory")
        if mark.namespace != folder.name:
            raise ConfigError(f"{folder}: is marked as namespace {mark.namespace!r:.100}; rename it back")
        tiers.append(tier)
    return tiers
