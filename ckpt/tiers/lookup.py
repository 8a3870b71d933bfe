"""Finds the tiers that a path or URL on a command line names: of one namespace, or of all namespaces below it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ckpt.config import CheckpointConfig
from ckpt.errors import ConfigError
from ckpt.format.shard_record import SaveId
from ckpt.tiers.buckets import SCHEMES, open_bucket, split_url
from ckpt.tiers.mark import MARK, parse_mark
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier, read_mark
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_client import S3Options
from ckpt.tiers.throttle import Throttle
from ckpt.tiers.tier import Tier

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_url(where: str) -> bool:
    """Whether a text is the URL of a bucket, by its scheme. Invalid URLs are refused when they are opened.

    Raises:
        ConfigError: it is a URL with another scheme.
    """
    scheme = _SCHEME.match(where)
    if scheme is not None and scheme[0].removesuffix("://") not in SCHEMES:
        raise ConfigError(f"{where}: got a URL of kind {scheme[0]}, expected a path, or s3://, gs:// or az://")
    return scheme is not None


def tiers_at(where: str) -> Sequence[Tier]:
    """The tiers at a place: a namespace's folder or prefix, or all namespaces below a directory or prefix.

    A directory may also have the directories of nodes, with namespaces in them.

    Raises:
        ConfigError: an invalid URL, or there is no namespace in the bucket.
        NamespaceError: a mark cannot be read.
        OSError: the storage cannot be read.
    """
    return _buckets(where) if is_url(where) else _directories(Path(where))


def open_namespace(where: str) -> Tier:
    """The tier of the only namespace at a place, which all nodes share.

    Raises:
        ConfigError: there is no namespace, or there are several.
        NamespaceError: a mark cannot be read.
        OSError: the storage cannot be read.
    """
    tiers = tiers_at(where)
    for tier in tiers:
        if isinstance(tier, NvmeTier):
            raise ConfigError(f"{where}: holds only the shards of node {tier.node}; give a shared checkpoint directory")
        if isinstance(tier, SharedTier) and tier.namespace != tier.folder.name:
            raise ConfigError(f"{tier.folder}: is marked as namespace {tier.namespace!r:.100}; rename it back")
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
    else:
        below = sorted(path.iterdir())
        folders = [folder for folder in below if (folder / MARK).is_file()]
        others = [folder for folder in below if folder not in folders]  # may be directories of nodes
        folders += [mark.parent for other in others for mark in sorted(other.glob(f"*/{MARK}")) if mark.is_file()]
    return [_directory(folder.absolute()) for folder in folders]


def _directory(folder: Path) -> SharedTier:
    mark = read_mark(folder)
    tier = SharedTier(folder.parent, folder.name)
    if mark.node is not None:
        tier = NvmeTier(folder.parent.parent, folder.name, node=folder.parent.name)
    tier.namespace = str(mark.namespace)  # the folder may have been renamed
    return tier


def _buckets(url: str) -> list[S3Tier]:
    scheme, name, prefix = split_url(url)
    bucket = open_bucket(url, S3Options(), Throttle(None))
    root = f"{scheme}://{name}"
    inside = f"{prefix}/" if prefix else ""
    places = [prefix] if prefix and bucket.exists(f"{inside}{MARK}") else []
    if not places:
        below = sorted(f"{inside}{directory}" for directory in bucket.directories(inside))
        places = [place for place in below if bucket.exists(f"{place}/{MARK}")]
    if not places:
        raise ConfigError(f"{url}: no namespace there ({MARK} at that prefix or one level below)")
    tiers = []
    for place in places:
        mark = parse_mark(bucket.get(f"{place}/{MARK}"), f"{root}/{place}/{MARK}")
        parent, _, namespace = place.rpartition("/")
        if mark.namespace != namespace:
            raise ConfigError(f"{root}/{place}: is marked as namespace {mark.namespace!r:.100}; move it back")
        tiers.append(S3Tier(f"{root}/{parent}", namespace))
    return tiers
