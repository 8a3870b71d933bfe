"""Finds the tiers that a path or URL on a command line names: of one namespace, or of all namespaces below it."""

from __future__ import annotations

import re
from pathlib import Path

from ckpt.errors import ConfigError
from ckpt.tiers.buckets import SCHEMES, open_bucket, split_url
from ckpt.tiers.mark import MARK, parse_mark
from ckpt.tiers.nvme import NvmeTier
from ckpt.tiers.posix import SharedTier, read_mark
from ckpt.tiers.s3 import S3Tier
from ckpt.tiers.s3_client import S3Options
from ckpt.tiers.throttle import Throttle

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


def local_tiers(path: Path) -> list[tuple[SharedTier, str]]:
    """The tiers at a path: a namespace's folder, a directory of such folders, or a directory of nodes' directories.

    Returns:
        Each tier with its kind, "nvme" or "shared".

    Raises:
        NamespaceError: a mark cannot be read.
        OSError: a directory cannot be read.
    """
    if (path / MARK).is_file():
        folders = [path]
    else:
        below = sorted(path.iterdir())
        folders = [folder for folder in below if (folder / MARK).is_file()]
        others = [folder for folder in below if folder not in folders]  # may be directories of nodes
        folders += [mark.parent for other in others for mark in sorted(other.glob(f"*/{MARK}"))]
    return [_local(folder.absolute()) for folder in folders]


def s3_tiers(url: str) -> list[S3Tier]:
    """The tiers at a prefix of a bucket: of the namespace there, or of all namespaces one level below.

    Raises:
        ConfigError: the URL is not of a bucket, or there is no namespace.
        NamespaceError: a mark cannot be read.
        OSError: the server does not answer.
    """
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


def _local(folder: Path) -> tuple[SharedTier, str]:
    mark = read_mark(folder)
    tier: SharedTier = SharedTier(folder.parent, folder.name)
    if mark.node is not None:
        tier = NvmeTier(folder.parent.parent, folder.name, node=folder.parent.name)
    tier.namespace = str(mark.namespace)  # the folder may have been renamed
    return tier, "nvme" if mark.node is not None else "shared"
